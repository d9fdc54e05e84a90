//! Store URLs: an accepted URL is written as one with the same meaning, and an error repeats no password.

use utxo_store::engine::StoreUrl;

use super::assert_one_line;

/// Runs the target `store_url`.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<StoreUrl>() {
        Ok(url) => {
            let written = url.reveal();
            assert_eq!(written.parse::<StoreUrl>().ok().as_ref(), Some(&url), "{written}");
            if let StoreUrl::Fjall(path, _) = &url {
                assert!(path.is_absolute() && path.parent().is_some(), "{}", path.display());
            }
        }
        Err(error) => assert_one_line(&error),
    }
    // The password must not appear, whatever else is wrong with the URL.
    let shown = match format!("postgres://user:hunter2@{text}").parse::<StoreUrl>() {
        Ok(url) => format!("{url} {url:?}"),
        Err(error) => error.to_string(),
    };
    assert!(text.contains("hunter2") || !shown.contains("hunter2"), "{shown}");
}
