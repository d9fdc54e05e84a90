//! Authorities and certificates that a test makes with `openssl`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// Password of the encrypted key of the client certificate.
pub const KEY_PASSWORD: &str = "planted-key-password-5d1c";

/// Certificates of one authority (`ca.pem`): a server certificate for `localhost` and a client certificate; and another
/// authority that signed neither.
pub struct Certificates(TempDir);

impl Certificates {
    /// Makes the certificates; `None`, with a line on standard error, when `openssl` is missing.
    pub fn make() -> Option<Self> {
        let there = Command::new("openssl").arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if there.is_err() {
            eprintln!("SKIPPED: tests over TLS: `openssl` is not installed");
            return None;
        }
        let made = Certificates(tempfile::tempdir().unwrap());
        let at = made.0.path();
        // The machine's own configuration may have other settings.
        fs::write(
            at.join("openssl.cnf"),
            "[req]\ndistinguished_name=name\nx509_extensions=authority\n[name]\n\
             [authority]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n\
             [server]\nsubjectAltName=DNS:localhost\n\
             [client]\nextendedKeyUsage=clientAuth\n",
        )
        .unwrap();
        for authority in ["ca", "stranger"] {
            openssl(
                at,
                &format!(
                    "req -x509 -nodes -days 30 -subj /CN={authority} -keyout {authority}.key -out {authority}.pem"
                ),
            );
        }
        for who in ["server", "client"] {
            openssl(at, &format!("req -nodes -subj /CN={who} -keyout {who}.key -out {who}.csr"));
        }
        made.sign("client", "ca");
        made.serve_by("ca");
        openssl(
            at,
            &format!("pkcs8 -topk8 -v2 aes256 -passout pass:{KEY_PASSWORD} -in client.key -out client.encrypted.key"),
        );
        Some(made)
    }

    /// Replaces the server certificate by a new one of this authority.
    pub fn serve_by(&self, authority: &str) {
        self.sign("server", authority);
        // Kafka reads the key and then its chain.
        let parts = ["server.key", "server.crt", &format!("{authority}.pem")];
        let parts = parts.map(|part| fs::read_to_string(self.path(part)).unwrap());
        fs::write(self.path("server.pem"), parts.concat()).unwrap();
    }

    fn sign(&self, who: &str, authority: &str) {
        let by = format!("-CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 30");
        let as_who = format!("-extfile openssl.cnf -extensions {who} -out {who}.crt");
        openssl(self.0.path(), &format!("x509 -req -in {who}.csr {by} {as_who}"));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn openssl(at: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    command.args(arguments.split_whitespace()).current_dir(at).stdin(Stdio::null());
    if arguments.starts_with("req") {
        command.args("-config openssl.cnf -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1".split(' '));
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}
