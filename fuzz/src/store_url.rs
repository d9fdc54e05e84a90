//! Store URLs: what is taken is written as a URL that means the same, and what is refused repeats no password.

use utxo_store::engine::StoreUrl;

use super::assert_one_line;

/// See the module.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<StoreUrl>() {
        Ok(url) => {
            let written = url.to_string();
            assert_eq!(written.parse::<StoreUrl>().ok().as_ref(), Some(&url), "{written}");
            if let StoreUrl::Fjall(path, _) = &url {
                assert!(path.is_absolute() && path.parent().is_some(), "{}", path.display());
            }
        }
        Err(error) => assert_one_line(&error),
    }
    // Whatever else is wrong with it.
    let error = format!("postgres://user:hunter2@{text}").parse::<StoreUrl>().expect_err("not built yet").to_string();
    assert!(!error.contains("hunter2"), "{error}");
}
