//! A batch on its way: its records handed to librdkafka in order, and what becomes of them.
//!
//! Two rules keep the order of a key. A message that the broker might refuse for its size is sent alone: nothing is behind it until it is
//! acknowledged. And a batch that is not acknowledged in time stays with librdkafka, whose sequence numbers keep a late retry from being
//! written twice or behind something newer; it is not sent again by another producer.

use kubetide_sink::{Id, Record};
use rdkafka::{error::RDKafkaErrorCode, types::RDKafkaErrorCode as Code};

use crate::{
    catalog::Catalog,
    connection::{Address, Connection, PATIENCE},
    feedback::Stop,
    message::{Destination, Outgoing, Writing},
};

/// Which batch is with librdkafka, and how much of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) batch: Id,
    /// The first record that was not handed over.
    pub(crate) next: usize,
    /// One message at a time: the broker has refused something, and it must be seen what.
    pub(crate) careful: bool,
    /// No message above this is worth asking a broker about.
    pub(crate) largest: usize,
    /// What was handed over last must be acknowledged before anything else is.
    pub(crate) alone: bool,
}

/// Why a batch is not there.
#[derive(Debug)]
pub(crate) enum Halt {
    /// Waiting has ended.
    Stop(Stop),
    /// This record is too large to be sent. All before it is acknowledged.
    TooLarge(usize),
    /// This message was not taken by librdkafka.
    NotTaken(RDKafkaErrorCode),
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

impl Flight {
    /// A batch of which nothing was handed over.
    pub(crate) fn new(batch: Id, careful: bool, largest: usize) -> Self {
        Self { batch, next: 0, careful, largest, alone: false }
    }

    /// Hands over what is left of the batch. `catalog` knows all topics of it.
    pub(crate) async fn hand_over(
        &mut self,
        connection: &Connection,
        writing: Writing<'_>,
        catalog: &Catalog,
        records: &[Record],
    ) -> Result<(), Halt> {
        for (at, record) in records.iter().enumerate().skip(self.next) {
            self.settle_if_alone(connection).await?;
            if let Some(destination) = writing.destination(record) {
                let outgoing = writing.outgoing(record);
                if outgoing.size() > self.largest {
                    connection.settled().await?;
                    return Err(Halt::TooLarge(at));
                }
                let limit = least(&destination, catalog);
                let alone = self.careful || outgoing.size() > limit;
                if alone {
                    connection.settled().await?;
                }
                hand_over(connection, catalog, &destination, at, &outgoing).await?;
                self.alone = alone;
            }
            self.next = at + 1;
        }
        self.settle_if_alone(connection).await
    }

    async fn settle_if_alone(&mut self, connection: &Connection) -> Result<(), Halt> {
        if self.alone {
            connection.settled().await?;
            self.alone = false;
        }
        Ok(())
    }
}

/// What the topics of this destination take for certain.
fn least(destination: &Destination, catalog: &Catalog) -> usize {
    match destination {
        Destination::Key(topic) => catalog.get(topic).map_or(0, |known| known.limit),
        // Control records are small.
        Destination::Partitions(_) => usize::MAX,
    }
}

async fn hand_over(
    connection: &Connection,
    catalog: &Catalog,
    destination: &Destination,
    at: usize,
    message: &Outgoing,
) -> Result<(), Halt> {
    let body = message.body.as_deref();
    match destination {
        Destination::Key(topic) => {
            let to = Address { topic, partition: None };
            send(connection, to, at, message, body).await?;
            if message.then_tombstone {
                send(connection, to, at, message, None).await?;
            }
        }
        Destination::Partitions(pattern) => {
            for (topic, partitions) in catalog.of(pattern) {
                for partition in 0..partitions {
                    let to = Address { topic: &topic, partition: Some(partition) };
                    send(connection, to, at, message, body).await?;
                }
            }
        }
    }
    Ok(())
}

/// Hands one message over; where there is no room, as soon as something was acknowledged.
pub(crate) async fn send(
    connection: &Connection,
    to: Address<'_>,
    at: usize,
    message: &Outgoing,
    body: Option<&[u8]>,
) -> Result<(), Halt> {
    loop {
        match connection.send(to, at, message, body) {
            Ok(()) => return Ok(()),
            Err(Code::QueueFull) => {
                let full = connection.feedback.outstanding();
                connection.feedback.wait(PATIENCE, |state| state.outstanding < full).await?;
            }
            Err(Code::Fatal) => return Err(Stop::Broken.into()),
            Err(code) => return Err(Halt::NotTaken(code)),
        }
    }
}
