//! Parses and checks the body of `POST /orders`. No [`Problem`] repeats a value of the body.

use axum::http::{HeaderMap, StatusCode, header};
use serde::Deserialize;

use super::problem::Problem;

/// Bytes.
pub(super) const BODY_MAX: usize = 16 * 1024;
/// Cents.
const AMOUNT_MAX: i64 = 100_000_000;
const QUANTITY_MAX: i32 = 1_000;
/// Characters of a customer or SKU.
const NAME_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    pub(super) customer: String,
    pub(super) sku: String,
    /// 1 to 1,000 pieces.
    pub(super) quantity: i32,
    /// Total, 1 to 100,000,000 cents.
    pub(super) amount_cents: i64,
}

impl Order {
    pub(super) fn parse(headers: &HeaderMap, body: &[u8]) -> Result<Self, Problem> {
        check_content_type(headers)?;
        let mut json = serde_json::Deserializer::from_slice(body);
        let parsed = serde_path_to_error::deserialize::<_, Self>(&mut json);
        let order = parsed.map_err(|error| malformed(&error))?;
        json.end().map_err(|_| invalid("there is trailing data after the JSON object"))?;
        order.check()?;
        Ok(order)
    }

    fn check(&self) -> Result<(), Problem> {
        for (field, name) in [("customer", &self.customer), ("sku", &self.sku)] {
            let length = name.chars().count();
            if length == 0 || length > NAME_MAX {
                return Err(invalid(format!("it must have 1 to {NAME_MAX} characters")).of(field));
            }
            if name.chars().any(char::is_control) {
                return Err(invalid("it must not contain control characters").of(field));
            }
        }
        if !(1..=QUANTITY_MAX).contains(&self.quantity) {
            return Err(invalid(format!("it must be 1 to {QUANTITY_MAX}")).of("quantity"));
        }
        if !(1..=AMOUNT_MAX).contains(&self.amount_cents) {
            return Err(invalid(format!("it must be 1 to {AMOUNT_MAX}")).of("amount_cents"));
        }
        Ok(())
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).map(str::trim);
    if essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    let problem = Problem::new(status, "unsupported media type", "send application/json");
    Err(problem.of("content-type"))
}

fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid order", detail)
}

/// Uses only those messages of the parser that repeat no value.
fn malformed(error: &serde_path_to_error::Error<serde_json::Error>) -> Problem {
    let path = error.path().to_string();
    let inner = error.inner();
    let (line, column) = (inner.line(), inner.column());
    if !inner.is_data() {
        let detail = format!("the body is not valid JSON: line {line}, column {column}");
        return Problem::new(StatusCode::BAD_REQUEST, "malformed request", detail);
    }
    let words = inner.to_string();
    let named = |start: &str| {
        words.strip_prefix(start).and_then(|rest| rest.split('`').next()).map(str::to_owned)
    };
    if let Some(field) = named("missing field `") {
        return invalid("required").of(field);
    }
    if let Some(field) = named("duplicate field `") {
        return invalid("given twice").of(field);
    }
    if words.starts_with("unknown field") {
        return invalid("there is no such field; known are customer, sku, quantity, amount_cents")
            .of(path);
    }
    let detail = format!("it has another type, or is out of range: line {line}, column {column}");
    let field = if path == "." { "body".to_owned() } else { path };
    invalid(detail).of(field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, "application/json; charset=utf-8".parse().unwrap());
        headers
    }

    fn parse(body: &str) -> Result<Order, Problem> {
        Order::parse(&json(), body.as_bytes())
    }

    const GOOD: &str = r#"{"customer":"ada","sku":"tea","quantity":2,"amount_cents":990}"#;

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("", 400, None),
            ("{", 400, None),
            ("[]", 422, Some("body")),
            ("{}", 422, Some("customer")),
            (&GOOD.replace("990", "-1"), 422, Some("amount_cents")),
            (&GOOD.replace("990", "0"), 422, Some("amount_cents")),
            (&GOOD.replace("990", "9223372036854775808"), 422, Some("amount_cents")),
            (&GOOD.replace("990", "9.5"), 422, Some("amount_cents")),
            (&GOOD.replace("990", "1e300"), 422, Some("amount_cents")),
            (&GOOD.replace("990", "\"990\""), 422, Some("amount_cents")),
            (&GOOD.replace(":2", ":1001"), 422, Some("quantity")),
            (&GOOD.replace("ada", ""), 422, Some("customer")),
            (&GOOD.replace("ada", "a\\u0000"), 422, Some("customer")),
            (&GOOD.replace("tea", &"x".repeat(65)), 422, Some("sku")),
            (&GOOD.replace("\"sku\"", "\"colour\""), 422, Some("colour")),
            (&GOOD.replace('}', ",\"sku\":\"b\"}"), 422, Some("sku")),
            (&format!("{GOOD}x"), 422, None),
        ];
        for (body, status, field) in cases {
            let problem = parse(body).unwrap_err();
            assert_eq!(problem.status.as_u16(), status, "{body}: {problem:?}");
            assert_eq!(problem.field.as_deref(), field, "{body}: {problem:?}");
        }
    }

    #[test]
    fn other_content_types_are_refused() {
        let none = Order::parse(&HeaderMap::new(), GOOD.as_bytes()).unwrap_err();
        assert_eq!(none.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, "text/plain".parse().unwrap());
        assert!(Order::parse(&headers, GOOD.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_body_is_an_order_or_the_clients_mistake_and_no_answer_repeats_a_value(body in ".{0,200}", secret in "[a-z]{12}") {
            if let Err(problem) = parse(&body) {
                prop_assert!(problem.status.is_client_error());
            }
            let given = GOOD.replace("990", &format!("\"{secret}\""));
            let told = format!("{:?}", parse(&given).unwrap_err());
            prop_assert!(!told.contains(&secret), "{}", told);
        }
    }
}
