//! kubeconfig files for the API server, one for each way of saying who one is. They go with the server.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::port::loopback;
use crate::scratch::Scratch;
use crate::{Apiserver, ClientCertificate, unique_name, user};

impl Apiserver {
    /// All rights by way of another port, for a proxy in front. The certificate still holds: it names the address.
    pub fn kubeconfig_at(&self, port: u16) -> PathBuf {
        with_token(&self.scratch, port, user::ADMIN_TOKEN)
    }

    /// This bearer token, which the server knows or not.
    pub fn kubeconfig_with_token(&self, token: &str) -> PathBuf {
        with_token(&self.scratch, self.port(), token)
    }

    /// The bearer token that is in this file when a client reads it. The admin's is the word `admin`.
    pub fn kubeconfig_with_token_file(&self, path: &Path) -> PathBuf {
        self.write_kubeconfig(json!({ "tokenFile": path }))
    }

    /// A client certificate, by the paths of its files.
    pub fn kubeconfig_with_certificate(&self, certificate: &ClientCertificate) -> PathBuf {
        self.write_kubeconfig(json!({
            "client-certificate": certificate.certificate,
            "client-key": certificate.key,
        }))
    }

    /// What this command prints, an `ExecCredential` of `client.authentication.k8s.io/v1`.
    pub fn kubeconfig_with_exec(&self, command: &str, args: &[&str]) -> PathBuf {
        self.write_kubeconfig(json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": command,
            "args": args,
            "interactiveMode": "Never",
        }}))
    }

    fn write_kubeconfig(&self, user: Value) -> PathBuf {
        write(&self.scratch, &unique_name("kubeconfig"), self.port(), user)
    }
}

/// The file is written anew by each call: its name says all that it depends on.
pub(crate) fn with_token(scratch: &Scratch, port: u16, token: &str) -> PathBuf {
    write(scratch, &format!("kubeconfig-{port}-{token}"), port, json!({ "token": token }))
}

fn write(scratch: &Scratch, name: &str, port: u16, user: Value) -> PathBuf {
    let content = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://{}", loopback(port)),
            "certificate-authority": scratch.data().join("certificates/apiserver.crt"),
        }}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    // JSON is YAML.
    scratch.write(&format!("{name}.yaml"), content.to_string()).expect("the server's directory can be written")
}
