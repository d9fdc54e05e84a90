//! The API over TLS: the certificate is replaced while the server runs.

use std::{fs, time::Duration};

use reqwest::{Certificate, Client};

use crate::{api::Api, certificates::Certificates, harness::World};

/// Returns a client that trusts one authority, with no connection yet.
fn client_of(certificates: &Certificates, authority: &str, api: &Api) -> Client {
    let pem = fs::read(certificates.path(&format!("{authority}.pem"))).unwrap();
    let trusted = [Certificate::from_pem(&pem).unwrap()];
    Client::builder().tls_certs_only(trusted).resolve("localhost", api.address).build().unwrap()
}

async fn is_answered(client: &Client, api: &Api) -> bool {
    let answer = client.get(format!("https://localhost:{}/health/live", api.address.port())).send().await;
    answer.is_ok_and(|answer| answer.status() == 200)
}

/// Waits until the metric says whether the files of the certificate are refused.
async fn until_refused(api: &Api, is_refused: i64) {
    for _ in 0..200 {
        if api.metrics.http_certificate_refused.get() == is_refused {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("utxo_http_certificate_refused is not {is_refused}");
}

#[tokio::test]
async fn a_new_certificate_is_used_and_a_damaged_one_is_not() {
    let Some(certificates) = Certificates::make() else { return };
    let world = World::new().await;
    let file = certificates.path("server.pem");
    let path = file.to_str().unwrap();
    let api = Api::start(&world, &[("HTTP__TLS_CERTIFICATE_FILE", path), ("HTTP__TLS_KEY_FILE", path)]).await;
    let early = client_of(&certificates, "ca", &api);
    assert!(is_answered(&early, &api).await);
    assert!(!is_answered(&client_of(&certificates, "stranger", &api), &api).await);

    let good = fs::read(&file).unwrap();
    fs::write(&file, &good[..good.len() / 2]).unwrap();
    until_refused(&api, 1).await;
    assert!(is_answered(&client_of(&certificates, "ca", &api), &api).await, "the last certificate stays in use");

    certificates.serve_by("stranger");
    until_refused(&api, 0).await;
    assert!(is_answered(&client_of(&certificates, "stranger", &api), &api).await, "the new certificate");
    assert!(!is_answered(&client_of(&certificates, "ca", &api), &api).await);
    assert!(is_answered(&early, &api).await, "the connection that was open is open");
}
