//! Tests of the settings for logins, certificates and secrets: refusals, files, warnings.

use std::{fs, path::Path};

use super::tests::load;
use crate::broker::kafka::{HAS_TLS, SaslMechanism, SecurityProtocol};

/// Returns the errors of `[kafka.security]` with these lines, except the errors of a build without TLS.
fn errors(lines: &str) -> Vec<String> {
    let errors = load(&format!("[kafka.security]\n{lines}\n"), &[]).err().unwrap_or_default();
    errors.into_iter().filter(|error| !error.contains("--features tls")).collect()
}

const LOGIN: &str = "mechanism = \"PLAIN\"\nusername = \"me\"\npassword = \"hunter2\"\n";

#[test]
fn contradicting_settings_are_refused_by_name_without_a_secret() {
    for (lines, problems) in [
        ("protocol = \"SSL\"", &["protocol must be one of plaintext, ssl, sasl_plaintext, sasl_ssl, not \"SSL\""][..]),
        (
            "mechanism = \"GSSAPI\"",
            &["mechanism must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, not \"GSSAPI\""],
        ),
        ("protocol = \"sasl_ssl\"", &["protocol is sasl_ssl, which needs kafka.security.mechanism"]),
        (
            "protocol = \"sasl_plaintext\"\nmechanism = \"PLAIN\"",
            &[
                "mechanism is PLAIN, which needs kafka.security.username",
                "mechanism is PLAIN, which needs kafka.security.password",
            ],
        ),
        (
            "username = \"me\"\npassword = \"hunter2\"",
            &[
                "username is given without kafka.security.mechanism",
                "password is given without kafka.security.mechanism",
            ],
        ),
        (
            &format!("protocol = \"ssl\"\n{LOGIN}"),
            &["mechanism is PLAIN, but kafka.security.protocol is ssl, which has no login: set sasl_ssl"],
        ),
        (
            "protocol = \"sasl_plaintext\"\nmechanism = \"OAUTHBEARER\"\npassword = \"hunter2\"",
            &["password is given, but OAUTHBEARER takes none"],
        ),
        (
            "ca_file = \"/a\"\nkey_password = \"hunter2\"\nendpoint_identification = false",
            &[
                "ca_file is set, but kafka.security.protocol is plaintext, which encrypts nothing",
                "key_password is set, but kafka.security.protocol is plaintext, which encrypts nothing",
                "endpoint_identification is set, but kafka.security.protocol is plaintext, which encrypts nothing",
            ],
        ),
        (
            "protocol = \"ssl\"\ncertificate_file = \"/dev/null\"",
            &["certificate_file is given without kafka.security.key_file"],
        ),
        (
            "protocol = \"ssl\"\nkey_file = \"/dev/null\"",
            &["key_file is given without kafka.security.certificate_file"],
        ),
        ("protocol = \"ssl\"\nkey_password = \"hunter2\"", &["key_password is given without kafka.security.key_file"]),
        (
            "protocol = \"ssl\"\nca_file = \"/nonexistent/ca.pem\"",
            &["ca_file names a file that cannot be read: No such file or directory (os error 2)"],
        ),
        (
            "protocol = \"ssl\"\nca_file = \"/etc\"",
            &["ca_file names \"/etc\", which cannot be read: Is a directory (os error 21)"],
        ),
        (
            &format!("protocol = \"sasl_plaintext\"\n{LOGIN}password_file = \"/etc/hostname\""),
            &["password_file is given beside kafka.security.password: one of them is enough"],
        ),
        // A password that is given as the file is not shown.
        (
            "protocol = \"sasl_plaintext\"\nmechanism = \"PLAIN\"\nusername = \"me\"\npassword_file = \"hunter2\"",
            &["password_file must be the absolute path of a file"],
        ),
        ("password = 7", &["password must be text, and not empty"]),
    ] {
        let expected: Vec<_> = problems.iter().map(|problem| format!("kafka.security.{problem} (FILE)")).collect();
        let errors = errors(lines);
        assert_eq!(errors, expected, "{lines}");
        assert!(!format!("{errors:?}").contains("hunter2"));
    }
}

#[test]
fn a_secret_is_read_from_its_file_and_errors_never_quote_the_content() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    let shown = file.display().to_string();
    let settings = [
        ("kafka.security", "password", "protocol = \"sasl_plaintext\"\nmechanism = \"PLAIN\"\nusername = \"me\""),
        ("store.aerospike", "password", "user = \"me\""),
        ("store.blobs", "secret_access_key", "access_key_id = \"me\""),
    ];
    for (section, key, others) in settings {
        let loaded = || load(&format!("[{section}]\n{others}\n{key}_file = {shown:?}\n"), &[]);
        for contents in ["hunter2", "hunter2\n", "hunter2\r\n"] {
            fs::write(&file, contents).unwrap();
            let config = loaded().unwrap();
            let secrets = [
                &config.kafka.security.password,
                &config.store.aerospike.password,
                &config.store.blobs.secret_access_key,
            ];
            let secrets: Vec<_> = secrets.into_iter().flatten().map(|secret| secret.as_str()).collect();
            assert_eq!(secrets, ["hunter2"], "{section}");
            assert!(!format!("{config:?}").contains("hunter2"));
        }
        let long = "x".repeat(65_537);
        for (contents, problem) in [
            (&b""[..], "is empty"),
            (b"\n", "is empty"),
            (b"hunter2\nhunter3\n", "is not one line of plain text"),
            (b"hunter2\0", "is not one line of plain text"),
            (b"hunter2\xff", "is no UTF-8 text"),
            (long.as_bytes(), "is larger than 65536 bytes"),
        ] {
            fs::write(&file, contents).unwrap();
            let expected = format!("{section}.{key}_file names {shown:?}, which {problem} (FILE)");
            assert_eq!(loaded().unwrap_err(), [expected]);
        }
        fs::remove_file(&file).unwrap();
        let error = loaded().unwrap_err().concat();
        assert!(error.contains("_file names a file that cannot be read: No such file"), "{error}");
        assert!(!error.contains(&shown), "the path may be the secret: {error}");
    }
}

/// A password of a private key needs a build with TLS, so that it has a test of its own.
#[test]
fn the_password_of_a_private_key_is_read_from_its_file() {
    let (directory, toml) = (tempfile::tempdir().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    let file = directory.path().join("secret");
    fs::write(&file, "hunter2\n").unwrap();
    let lines = format!(
        "[kafka.security]\nprotocol = \"ssl\"\ncertificate_file = {toml:?}\nkey_file = {toml:?}\n\
         key_password_file = {file:?}\n"
    );
    match load(&lines, &[]) {
        Ok(config) => assert_eq!(config.kafka.security.key_password.unwrap().as_str(), "hunter2"),
        Err(errors) => assert!(!HAS_TLS && errors.len() == 1, "{errors:?}"),
    }
}

#[test]
fn half_of_a_login_is_refused() {
    for (section, key, without) in [
        ("store.aerospike", "user", "password"),
        ("store.aerospike", "password", "user"),
        ("store.blobs", "access_key_id", "secret_access_key"),
        ("store.blobs", "secret_access_key", "access_key_id"),
    ] {
        let errors = load(&format!("[{section}]\n{key} = \"hunter2\"\n"), &[]).unwrap_err();
        assert_eq!(errors, [format!("{section}.{key} is given without {section}.{without} (FILE)")]);
    }
}

#[test]
fn a_build_without_tls_refuses_encryption_and_names_the_feature() {
    for (lines, key) in [
        ("[kafka.security]\nprotocol = \"ssl\"", "kafka.security.protocol is ssl"),
        (
            "[kafka.security]\nprotocol = \"sasl_plaintext\"\nmechanism = \"SCRAM-SHA-256\"\nusername = \"a\"\n\
             password = \"b\"",
            "kafka.security.mechanism takes OpenSSL",
        ),
        ("[kafka.properties]\n\"security.protocol\" = \"SASL_SSL\"", "kafka.properties.security.protocol needs TLS"),
        ("[kafka.properties]\nsasl.mechanisms = \"SCRAM-SHA-512\"", "kafka.properties.sasl.mechanisms needs TLS"),
    ] {
        let refused = format!("{key}, which this build does not have: build it with --features tls (FILE)");
        let expected: &[String] = if HAS_TLS { &[] } else { &[refused] };
        assert_eq!(load(lines, &[]).err().unwrap_or_default(), expected);
    }
}

#[test]
fn weak_settings_give_warnings() {
    let warnings = |toml: &str| load(toml, &[]).map(|config| config.warnings());
    assert_eq!(warnings(""), Ok(vec![]));
    let open = warnings(&format!("[kafka.security]\nprotocol = \"sasl_plaintext\"\n{LOGIN}")).unwrap();
    assert!(open.len() == 1 && open[0].contains("the password itself goes over the line unencrypted"), "{open:?}");
    let control = |listen: &str| warnings(&format!("[http]\ncontrol = true\nlisten = \"{listen}\"")).unwrap();
    assert_eq!(control("127.0.0.1:9464"), [""; 0]);
    assert!(control("0.0.0.0:9464")[0].contains("every client that reaches it can pause partitions"));
    if HAS_TLS {
        let any_host = warnings("[kafka.security]\nprotocol = \"ssl\"\nendpoint_identification = false").unwrap();
        assert!(any_host.len() == 1 && any_host[0].contains("can pose as a broker"), "{any_host:?}");
    }
}

/// Properties from the time before the section existed work as they did, give a warning, and are refused beside any
/// setting of the section.
#[test]
fn deprecated_properties_are_accepted_while_the_section_is_unset() {
    let properties = "[kafka.properties]\nsasl.username = \"me\"\n\"sasl.password\" = \"hunter2\"\n";
    let config = load(properties, &[]).unwrap();
    assert_eq!(
        config.warnings(),
        [
            "kafka.properties.sasl.password is deprecated: set kafka.security.password instead",
            "kafka.properties.sasl.username is deprecated: set kafka.security.username instead"
        ]
    );
    // A setting that equals its default counts as unset: the sample has every default.
    let sample = format!("{properties}[kafka.security]\nprotocol = \"plaintext\"\nendpoint_identification = true\n");
    assert_eq!(load(&sample, &[]), Ok(config));

    let beside = format!("{properties}[kafka.security]\nprotocol = \"sasl_plaintext\"\n{LOGIN}");
    let errors = load(&beside, &[("UTXO_STORE__KAFKA__PROPERTIES__SASL_MECHANISM", "PLAIN")]).unwrap_err();
    assert_eq!(
        errors,
        [
            "kafka.properties.sasl.mechanism is set by kafka.security.mechanism \
             (UTXO_STORE__KAFKA__PROPERTIES__SASL_MECHANISM)",
            "kafka.properties.sasl.password is set by kafka.security.password (FILE)",
            "kafka.properties.sasl.username is set by kafka.security.username (FILE)",
        ]
    );
}

/// Only the settings decide about the verification of certificates.
#[test]
fn no_property_weakens_the_verification_of_certificates() {
    for (property, setting) in [
        ("enable.ssl.certificate.verification", "ca_file"),
        ("ssl.endpoint.identification.algorithm", "endpoint_identification"),
    ] {
        let toml = format!("[kafka.security]\nprotocol = \"ssl\"\n[kafka.properties]\n\"{property}\" = \"none\"\n");
        let errors = load(&toml, &[]).unwrap_err();
        let refused = format!("kafka.properties.{property} is set by kafka.security.{setting} (FILE)");
        assert!(errors.contains(&refused), "{errors:?}");
    }
}

#[test]
fn the_environment_can_set_the_login() {
    let variables = [
        ("UTXO_STORE__KAFKA__SECURITY__PROTOCOL", "sasl_plaintext"),
        ("UTXO_STORE__KAFKA__SECURITY__MECHANISM", "PLAIN"),
        ("UTXO_STORE__KAFKA__SECURITY__USERNAME", "me"),
        ("UTXO_STORE__KAFKA__SECURITY__PASSWORD", "0123"),
    ];
    let security = load("", &variables).unwrap().kafka.security;
    assert_eq!((security.protocol, security.mechanism), (SecurityProtocol::SaslPlaintext, Some(SaslMechanism::Plain)));
    assert_eq!(security.password.unwrap().as_str(), "0123");
}
