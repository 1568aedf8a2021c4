//! Every rule of readiness, with the clock moved by hand.
