//! The parts of the description that all routes share: tokens, statuses, problem documents, bodies of bytes.

use serde_json::{Map, Value, json};
use utoipa::openapi::{OpenApi, security::SecurityRequirement};

use super::params::OCTET_STREAM;
use crate::api::problem::PROBLEM_JSON;

/// Name of the security scheme.
const TOKEN: &str = "token";
/// Statuses that every route can answer, with their meaning.
const EVERY_ROUTE: [(&str, &str); 7] = [
    ("400", "Malformed parameter, or an unknown one"),
    ("401", "The request needs a known bearer token"),
    ("403", "The token has a lesser role, or the request is one of a web page"),
    ("413", "The request needs more memory than all requests together may take"),
    ("429", "Too many requests, or streams, at the same time"),
    ("500", "A record or a body of the store is damaged"),
    ("503", "The store or the log does not answer"),
];
/// Statuses that every route with a body can answer, with their meaning.
const WITH_BODY: [(&str, &str); 2] =
    [("408", "The body did not arrive in time"), ("415", "The route takes another media type")];

/// Notes on each operation of a part of the routes the role that a token needs. Without a token file no token is
/// needed.
pub fn require_role(document: &mut OpenApi, role: &str) {
    for item in document.paths.paths.values_mut() {
        for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
            operation.security = Some(vec![SecurityRequirement::default(), SecurityRequirement::new(TOKEN, [role])]);
        }
    }
}

/// Returns the description with the parts that all routes share.
pub fn complete(document: &OpenApi) -> Value {
    let mut document =
        serde_json::to_value(document).unwrap_or_else(|error| unreachable!("a document is JSON: {error}"));
    document["components"]["securitySchemes"] = json!({TOKEN: {
        "type": "http",
        "scheme": "bearer",
        "description": "Needed where the server has a token file (`http.tokens_file`). An operation names the role of \
                        the token: `read`, `submit` or `command`; a role includes the ones before. A token of the role \
                        `wallet` names its owners (`wallet:alice,bob`); a token of the role `command` has the rights \
                        of all owners.",
    }});
    // A field that `fields` does not select is absent.
    if let Some(Value::Object(schema)) = document.pointer_mut("/components/schemas/TransactionData") {
        schema.remove("required");
    }
    widen_numbers(&mut document);
    let methods = document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    for operation in methods.filter_map(Value::as_object_mut).flat_map(Map::values_mut) {
        let has_body = operation.get("requestBody").is_some();
        if has_body {
            describe_bytes(&mut operation["requestBody"]["content"]);
            operation["requestBody"]["required"] = json!(true);
        }
        let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { continue };
        for (status, meaning) in EVERY_ROUTE.iter().chain(WITH_BODY.iter().filter(|_| has_body)) {
            responses.entry(*status).or_insert_with(|| json!({"description": meaning}));
        }
        for (status, response) in responses {
            if status.starts_with(['4', '5']) {
                response["content"] = json!({PROBLEM_JSON: {"schema": problem_schema(response)}});
            } else if response.get("content").is_some() {
                describe_bytes(&mut response["content"]);
            }
            if ["429", "503"].contains(&status.as_str()) {
                let header = json!({"description": "Pause before the next attempt, s", "schema": {"type": "integer"}});
                response["headers"] = json!({"Retry-After": header});
            }
        }
    }
    document
}

/// Returns the schema of a problem; a response with another schema declares further members of some of its problems.
fn problem_schema(response: &Value) -> Value {
    let problem = json!({"$ref": "#/components/schemas/Problem"});
    match &response["content"][PROBLEM_JSON]["schema"] {
        Value::Null => problem,
        declared if *declared == problem => problem,
        members => json!({"anyOf": [{"allOf": [problem, members]}, problem]}),
    }
}

/// Describes unsigned numbers of 32 bits by their range: generated clients read `int32` as signed.
fn widen_numbers(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if members.get("format") == Some(&json!("int32")) && members.get("minimum") == Some(&json!(0)) {
                members.insert("format".to_owned(), json!("int64"));
                members.insert("maximum".to_owned(), json!(u32::MAX));
            }
            members.values_mut().for_each(widen_numbers);
        }
        Value::Array(values) => values.iter_mut().for_each(widen_numbers),
        _ => {}
    }
}

/// Describes bytes as bytes, and not as a list of numbers in JSON.
fn describe_bytes(content: &mut Value) {
    if let Some(bytes) = content.get_mut(OCTET_STREAM) {
        *bytes = json!({"schema": {"type": "string", "format": "binary"}});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_states_are_described_by_their_values() {
        let document: Value = serde_json::from_str(include_str!("../../../schemas/openapi.json")).unwrap();
        let schemas = &document["components"]["schemas"];
        let height = &schemas["BlockData"]["properties"]["height"];
        assert_eq!((&height["format"], &height["maximum"]), (&json!("int64"), &json!(u32::MAX)));
        assert_eq!(schemas["SubmittedTransaction"]["properties"]["partition"]["format"], "int32", "a signed number");
        for (schema, field, named, value, count) in [
            ("TransactionData", "state", "TransactionState", "pruned", 5),
            ("OutputView", "status", "OutputStatus", "FROZEN_UNTIL", 10),
            ("CommandResultView", "result", "CommandResultName", "already-applied", 6),
        ] {
            let described = schemas[schema]["properties"][field].to_string();
            assert!(described.contains(&format!("#/components/schemas/{named}\"")), "{schema}.{field}: {described}");
            let values = match schemas[named]["oneOf"].as_array() {
                Some(each) => each.iter().map(|value| value["const"].clone()).collect(),
                None => schemas[named]["enum"].as_array().unwrap().clone(),
            };
            assert!(values.contains(&json!(value)) && values.len() == count, "{named}: {values:?}");
        }
        let parameters = document["paths"]["/v1/outcomes"]["get"]["parameters"].as_array().unwrap();
        let header = parameters.iter().find(|parameter| parameter["name"] == "Last-Event-ID").unwrap();
        assert_eq!((&header["in"], &header["required"]), (&json!("header"), &json!(false)));
        for status in ["400", "413", "500", "503"] {
            let response = &document["paths"]["/v1/transactions"]["post"]["responses"][status];
            assert!(
                response["content"][PROBLEM_JSON]["schema"].to_string().contains("PublishedTransactions"),
                "{status}"
            );
        }
    }

    #[test]
    fn every_operation_has_a_role_and_the_statuses_of_every_route() {
        let text = include_str!("../../../schemas/openapi.json");
        let document: Value = serde_json::from_str(text).unwrap();
        let mut roles = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let statuses = operation["responses"].as_object().unwrap();
                for (status, _) in EVERY_ROUTE.iter().chain(WITH_BODY.iter().filter(|_| method == "post")) {
                    let schema = &statuses[*status]["content"][PROBLEM_JSON]["schema"];
                    let schema = if schema["anyOf"].is_array() { &schema["anyOf"][0]["allOf"][0] } else { schema };
                    assert_eq!(schema["$ref"], "#/components/schemas/Problem", "{method} {path} {status}");
                }
                assert_eq!(operation["requestBody"]["required"] == true, method == "post", "{method} {path}");
                assert_eq!(operation["security"][0], json!({}), "{method} {path}");
                roles.push((path.as_str(), method.as_str(), operation["security"][1][TOKEN][0].as_str().unwrap()));
            }
        }
        let (vault, mut roles): (Vec<_>, Vec<_>) =
            roles.into_iter().partition(|(path, ..)| path.starts_with("/v1/vault"));
        let of_operators = vault.iter().filter(|(.., role)| *role == "command").map(|(path, ..)| *path);
        let of_operators: Vec<&str> = of_operators.map(|path| path.rsplit('/').next().unwrap_or(path)).collect();
        assert_eq!((vault.len(), of_operators), (14, vec!["rescans", "scripts", "scripts:unwatch"]));
        let others = vault.iter().filter(|(.., role)| *role != "command");
        assert!(others.clone().count() == 11 && others.clone().all(|(.., role)| *role == "wallet"), "{vault:?}");
        roles.retain(|(.., role)| *role != "read");
        assert_eq!(roles, [("/v1/commands", "post", "command"), ("/v1/transactions", "post", "submit")]);
        assert!(document["components"]["schemas"]["TransactionData"]["required"].is_null());
    }
}
