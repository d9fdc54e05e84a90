//! The page `/docs`: the description of the API (`/openapi.json`) for people.
//!
//! The server renders the description itself. Swagger UI, Redoc and Scalar, embedded by their crates, are 1 to 4 MB of
//! script in the binary, or load the script from another host; the page permits no script (`Content-Security-Policy`).
//! This file is the smaller answer, and looks like the other pages.

use maud::{Markup, html};
use serde_json::{Map, Value, json};

/// Deepest nesting of an example.
const DEPTH: usize = 4;

/// Renders the page from the description as JSON.
pub fn render(document: &Value) -> Markup {
    let operations = operations_of(document);
    html! {
        h1 { "The API" }
        p { (coded(text_of(&document["info"]["description"]))) }
        p {
            "For programs: " a href="/openapi.json" { "openapi.json" }
            " (OpenAPI " (text_of(&document["openapi"])) "). "
            "Where tokens are set, each request has the header " code { "Authorization: Bearer TOKEN" } "."
        }
        table {
            thead { tr { th { "Request" } th { "Answer" } } }
            tbody {
                @for operation in &operations {
                    tr {
                        td.mono { a href={ "#" (operation.id()) } { (operation.method) " " (operation.path) } }
                        td { (coded(text_of(&operation.content["summary"]))) }
                    }
                }
            }
        }
        @for operation in &operations { (render_operation(operation, document)) }
        h2 { "Data" }
        @for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
            h3 id={ "schema-" (name) } { (name) }
            (render_schema(schema))
        }
    }
}

/// A method of a path.
struct DescribedOperation<'a> {
    path: &'a str,
    method: String,
    content: &'a Value,
}

impl DescribedOperation<'_> {
    fn id(&self) -> &str {
        text_of(&self.content["operationId"])
    }
}

fn operations_of(document: &Value) -> Vec<DescribedOperation<'_>> {
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, content) in methods.as_object().into_iter().flatten() {
            if content["responses"].is_object() {
                operations.push(DescribedOperation { path, method: method.to_uppercase(), content });
            }
        }
    }
    operations
}

fn render_operation(operation: &DescribedOperation<'_>, document: &Value) -> Markup {
    let parameters = operation.content["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    let body = operation.content["requestBody"]["content"].as_object();
    html! {
        h2 id=(operation.id()) { span.mono { (operation.method) " " (operation.path) } }
        p { (coded(text_of(&operation.content["summary"]))) }
        @for paragraph in text_of(&operation.content["description"]).split("\n\n").filter(|text| !text.is_empty()) {
            p { (coded(paragraph)) }
        }
        @if let Some(role) = role_of(operation) { p { "Role of the token: " code { (role) } } }
        @if !parameters.is_empty() {
            table {
                thead { tr { th { "Parameter" } th { "Type" } th { "Meaning" } } }
                tbody {
                    @for parameter in parameters {
                        tr {
                            td.mono {
                                (text_of(&parameter["name"]))
                                @if parameter["required"] == true { " (required)" }
                            }
                            td data-label="Type" {
                                (type_of(&parameter["schema"])) ", in the " (text_of(&parameter["in"]))
                            }
                            td { (coded(text_of(&parameter["description"]))) }
                        }
                    }
                }
            }
        }
        @if let Some(body) = body {
            p { "Body: " (render_content(body)) }
        }
        pre { code { (example_request(operation, document)) } }
        table {
            thead { tr { th { "Status" } th { "Meaning" } th { "Content" } } }
            tbody {
                @for (status, response) in operation.content["responses"].as_object().into_iter().flatten() {
                    tr {
                        td data-label="Status" { (status) }
                        td { (coded(text_of(&response["description"]))) }
                        td data-label="Content" {
                            @if let Some(content) = response["content"].as_object() { (render_content(content)) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the role that a token needs; `None`: the operation takes no token.
fn role_of<'a>(operation: &DescribedOperation<'a>) -> Option<&'a str> {
    let requirements = operation.content["security"].as_array()?.iter().filter_map(Value::as_object);
    requirements.flat_map(Map::values).find_map(|roles| roles[0].as_str())
}

fn render_content(content: &Map<String, Value>) -> Markup {
    html! {
        @for (index, (media_type, body)) in content.iter().enumerate() {
            @if index > 0 { " or " }
            code { (media_type) } ": " (type_of(&body["schema"]))
        }
    }
}

/// Renders the fields of an object, or the alternatives of a schema.
fn render_schema(schema: &Value) -> Markup {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    html! {
        @if let Some(description) = schema["description"].as_str() { p { (coded(description)) } }
        @match schema["properties"].as_object() {
            None => { p { (type_of(schema)) } },
            Some(fields) => {
                table {
                    thead { tr { th { "Field" } th { "Type" } th { "Meaning" } } }
                    tbody {
                        @for (name, field) in fields {
                            tr {
                                td.mono {
                                    (name) @if !required.contains(&name.as_str()) { " (optional)" }
                                }
                                td data-label="Type" { (type_of(field)) }
                                td { (coded(text_of(&field["description"]))) }
                            }
                        }
                    }
                }
            },
        }
    }
}

/// Renders the type of a schema, with a link to a named one.
fn type_of(schema: &Value) -> Markup {
    let alternatives = ["oneOf", "anyOf", "allOf"].iter().find_map(|name| schema[name].as_array());
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    };
    html! {
        @if let Some(name) = reference_of(schema) { a href={ "#schema-" (name) } { (name) } }
        @else if let Some(alternatives) = alternatives {
            @for (index, alternative) in alternatives.iter().enumerate() {
                @if index > 0 { " or " }
                (type_of(alternative))
            }
        } @else if let Some(values) = schema["enum"].as_array() {
            @for (index, value) in values.iter().enumerate() { @if index > 0 { ", " } code { (text_of(value)) } }
        } @else if kinds.contains(&"array") { "list of " (type_of(&schema["items"])) }
        @else if kinds.is_empty() { "any" }
        @else { (kinds.join(" or ")) @if schema["format"] == "binary" { " of bytes" } }
    }
}

fn reference_of(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

/// Returns a request as a `curl` command, with an example for each required parameter.
fn example_request(operation: &DescribedOperation<'_>, document: &Value) -> String {
    let txid = "12".repeat(32);
    let path = operation.path.replace("{txid}", &txid).replace("{vout}", "0").replace("{block}", "height:1");
    let path = path.replace("{id}", &"ab".repeat(16));
    let mut query = Vec::new();
    for parameter in operation.content["parameters"].as_array().into_iter().flatten() {
        if let ("query", Some(example)) = (text_of(&parameter["in"]), find_example(parameter)) {
            let example = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
            query.push(format!("{}={example}", text_of(&parameter["name"])));
        }
    }
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    let body = &operation.content["requestBody"]["content"]["application/json"]["schema"];
    let body = match example_of(body, document, DEPTH) {
        Value::Null => String::new(),
        example => format!(" \\\n  -H 'Content-Type: application/json' -d '{example}'"),
    };
    format!("curl \"$STORE{path}{query}\"{body}")
}

fn find_example(parameter: &Value) -> Option<&Value> {
    [&parameter["example"], &parameter["schema"]["example"]].into_iter().find(|example| !example.is_null())
}

/// Returns an example of a schema: its own, or one of its required fields.
fn example_of(schema: &Value, document: &Value, depth: usize) -> Value {
    if !schema["example"].is_null() {
        return schema["example"].clone();
    }
    if depth == 0 {
        return Value::Null;
    }
    if let Some(name) = reference_of(schema) {
        return example_of(&document["components"]["schemas"][name], document, depth - 1);
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match kind {
        Some("object") => {
            let names = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let field = |name: &str| (name.to_owned(), example_of(&schema["properties"][name], document, depth - 1));
            Value::Object(names.map(field).collect())
        }
        Some("array") => json!([example_of(&schema["items"], document, depth - 1)]),
        Some("string") => json!("…"),
        Some("integer") => json!(0),
        Some("boolean") => json!(true),
        _ => Value::Null,
    }
}

/// Renders a text, in which words between backquotes are code.
fn coded(text: &str) -> Markup {
    html! {
        @for (index, piece) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (piece) } } @else { (piece) }
        }
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_and_schema_has_its_place_and_every_link_its_target() {
        let document: Value = serde_json::from_str(include_str!("../../../schemas/openapi.json")).unwrap();
        let shown = render(&document).into_string();
        let mut links: Vec<&str> =
            shown.split("href=\"#").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        links.sort_unstable();
        links.dedup();
        assert!(links.len() > 30, "{links:?}");
        for link in links {
            assert_eq!(shown.matches(&format!(" id=\"{link}\"")).count(), 1, "{link}");
        }
        for operation in operations_of(&document) {
            assert!(shown.contains(&format!("<h2 id=\"{}\">", operation.id())), "{}", operation.path);
        }
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            assert!(shown.contains(&format!("<h3 id=\"schema-{name}\">")), "{name}");
        }
    }

    #[test]
    fn an_example_has_the_path_the_parameters_and_the_required_fields() {
        let document = json!({
            "paths": {"/v1/things/{txid}": {"post": {
                "operationId": "post_thing",
                "parameters": [
                    {"name": "wait", "in": "query", "example": "live", "schema": {"type": "string"}},
                    {"name": "all", "in": "query", "schema": {"type": "boolean", "example": true}},
                ],
                "security": [{}, {"token": ["submit"]}],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
                "responses": {"200": {"description": "<b>`done`</b>"}},
            }}},
            "components": {"schemas": {"Thing": {
                "type": "object",
                "required": ["names"],
                "properties": {"names": {"type": "array", "items": {"type": "string"}}, "more": {"type": "boolean"}},
            }}},
        });
        let operation = operations_of(&document).remove(0);
        let url = format!("\"$STORE/v1/things/{}?wait=live&all=true\"", "12".repeat(32));
        let expected = format!("curl {url} \\\n  -H 'Content-Type: application/json' -d '{{\"names\":[\"…\"]}}'");
        assert_eq!(example_request(&operation, &document), expected);
        let shown = render(&document).into_string();
        assert!(shown.contains("&lt;b&gt;<code>done</code>&lt;/b&gt;"), "{shown}");
        assert!(shown.contains("Role of the token: <code>submit</code>"), "{shown}");
        assert!(shown.contains("more (optional)") && shown.contains("list of string"), "{shown}");
    }
}
