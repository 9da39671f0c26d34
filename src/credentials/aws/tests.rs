//! Tests the providers against a server that answers as AWS documents it.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::*;
use crate::CredentialsError;

/// A server that answers by the request's first line, and remembers all requests.
struct Fake {
    address: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    fn start(answers: &'static [(&'static str, &'static str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let remembered = Arc::clone(&seen);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let mut buffer = vec![0; 16 * 1024];
                let mut length = 0;
                loop {
                    length += stream.read(&mut buffer[length..]).unwrap();
                    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                    let is_whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
                        let length = head.lines().find_map(|line| {
                            let (name, value) = line.split_once(": ")?;
                            name.eq_ignore_ascii_case("content-length")
                                .then(|| value.parse().ok())?
                        });
                        body.len() >= length.unwrap_or(0)
                    });
                    if is_whole {
                        remembered.lock().unwrap().push(text.clone());
                        let found = answers.iter().find(|(start, _)| text.starts_with(start));
                        let (status, body) =
                            found.map_or(("404 Not Found", ""), |it| ("200 OK", it.1));
                        let length = body.len();
                        let _ = write!(
                            stream,
                            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                        );
                        break;
                    }
                }
            }
        });
        Self { address, seen }
    }

    fn seen(&self) -> String {
        self.seen.lock().unwrap().join("\n")
    }
}

fn environment(variables: &[(&str, &str)]) -> AwsEnvironment {
    let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    AwsEnvironment::of(owned)
}

const METADATA: &str = r#"{"Code":"Success","AccessKeyId":"ASIA1","SecretAccessKey":"hunter2",
    "Token":"session","Expiration":"2026-11-27T05:00:00Z"}"#;

fn assert_temporary(found: &AwsCredentials) {
    assert_eq!(found.access_key_id, "ASIA1");
    assert_eq!(found.secret_access_key.reveal(), "hunter2");
    assert_eq!(found.session_token.as_ref().map(Password::reveal), Some("session"));
    assert_eq!(found.expires_ms, Some(1_795_755_600_000));
    assert!(!format!("{found:?}").contains("hunter2"));
}

#[test]
fn an_instance_is_asked_by_the_second_version_of_its_protocol() {
    let fake = Fake::start(&[
        ("PUT /latest/api/token ", "the-token"),
        ("GET /latest/meta-data/iam/security-credentials/ ", "relay-role\n"),
        ("GET /latest/meta-data/iam/security-credentials/relay-role ", METADATA),
    ]);
    let endpoint = format!("http://{}/", fake.address);
    let variables = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint.as_str())];
    assert_temporary(&environment(&variables).credentials().unwrap());
    assert_eq!(
        fake.seen().to_lowercase().matches("x-aws-ec2-metadata-token: the-token").count(),
        2
    );
}

#[test]
fn a_container_is_asked_with_its_token() {
    let fake = Fake::start(&[("GET /v1/credentials ", METADATA)]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "pod-identity\n").unwrap();
    let url = format!("http://{}/v1/credentials", fake.address);
    let found = environment(&[
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file.to_str().unwrap()),
    ])
    .credentials()
    .unwrap();
    assert_temporary(&found);
    assert!(fake.seen().to_lowercase().contains("authorization: pod-identity"), "{}", fake.seen());
}

#[test]
fn a_web_identity_is_exchanged_for_a_role() {
    let fake = Fake::start(&[(
        "POST /",
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
         <AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>hunter2</SecretAccessKey>\
         <SessionToken>session</SessionToken><Expiration>2026-11-27T05:00:00Z</Expiration>\
         </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
    )]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "platform.token").unwrap();
    let found = environment(&[
        ("AWS_ENDPOINT_URL_STS", &format!("http://{}/", fake.address)),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()),
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/relay"),
    ])
    .credentials()
    .unwrap();
    assert_temporary(&found);
    let seen = fake.seen();
    assert!(seen.contains("RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Frelay"), "{seen}");
    assert!(seen.contains("WebIdentityToken=platform.token"), "{seen}");
}

#[test]
fn a_profile_has_keys_a_region_or_a_process() {
    let folder = tempfile::tempdir().unwrap();
    let [config, credentials] = ["config", "credentials"].map(|name| folder.path().join(name));
    std::fs::write(
        &config,
        "[default]\nregion = eu-west-1\n[profile printed]\ncredential_process = printf \
         '{\"Version\":1,\"AccessKeyId\":\"ASIA1\",\"SecretAccessKey\":\"hunter2\",\
         \"SessionToken\":\"session\",\"Expiration\":\"2026-11-27T05:00:00Z\"}'\n\
         [profile chained]\nsource_profile = default\nrole_arn = arn:x\n",
    )
    .unwrap();
    std::fs::write(
        &credentials,
        "# keys\n[default]\naws_access_key_id = AKIA2\naws_secret_access_key=second\n",
    )
    .unwrap();
    let files = [
        ("AWS_CONFIG_FILE", config.to_str().unwrap()),
        ("AWS_SHARED_CREDENTIALS_FILE", credentials.to_str().unwrap()),
    ];
    let of = |profile: &str| environment(&[&files[..], &[("AWS_PROFILE", profile)]].concat());
    let plain = environment(&files);
    let found = plain.credentials().unwrap();
    assert_eq!((found.access_key_id.as_str(), found.session_token), ("AKIA2", None));
    assert_eq!(region(&plain, "db.example").as_deref(), Some("eu-west-1"));
    assert_temporary(&of("printed").credentials().unwrap());
    let error = of("chained").credentials().unwrap_err().to_string();
    assert!(error.contains("logs in by source_profile"), "{error}");
    let error = of("missing").credentials().unwrap_err().to_string();
    assert!(error.contains("missing"), "{error}");
}

#[test]
fn a_machine_without_any_is_told_where_to_put_them() {
    let off = environment(&[("AWS_EC2_METADATA_DISABLED", "true"), ("HOME", "/nowhere")]);
    let error = off.credentials().unwrap_err();
    assert!(matches!(error, CredentialsError::NoAwsCredentials(_)), "{error}");
    assert!(error.hint().unwrap().contains("AWS_PROFILE"));
    let refused =
        [("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1"), ("HOME", "/nowhere")];
    let error = environment(&refused).credentials().unwrap_err().to_string();
    assert!(error.contains("does not answer"), "{error}");
}

/// Signatures of botocore: `fixtures/aws/draw.py`.
#[test]
fn a_thousand_drawn_tokens_equal_those_of_botocore() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/aws/tokens.jsonl");
    let drawn = std::fs::read_to_string(path).unwrap();
    let mut equal = 0;
    for line in drawn.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| case[name].as_str().unwrap().to_owned();
        let credentials = AwsCredentials {
            access_key_id: text("key"),
            secret_access_key: Password::new(text("secret")),
            session_token: case["token"].as_str().map(Password::new),
            expires_ms: None,
        };
        let (region, now_s) = (text("region"), case["now_s"].as_u64().unwrap());
        let signed = match case["port"].as_u64() {
            None => msk_token(&credentials, &region, now_s),
            Some(port) => {
                let endpoint = (text("host"), u16::try_from(port).unwrap());
                let endpoint = (endpoint.0.as_str(), endpoint.1);
                let user = text("user");
                rds_password(&credentials, &region, endpoint, &user, now_s).reveal().to_owned()
            }
        };
        let digest = crate::sigv4::hex(&Sha256::digest(signed.as_bytes()));
        assert_eq!(digest, text("sha256"), "{line}: {signed}");
        equal += 1;
    }
    assert_eq!(equal, 1_000);
}
