//! Encodes and decodes the Redis value of an idempotency key.
//!
//! ```text
//! PENDING    P  fingerprint (32)  the owner's token (8)                                    41 bytes
//! COMPLETED  C  fingerprint (32)  status (2)  headers (1 + ..)  body                       36 + ..
//! POINTER    L  fingerprint (32)  the response is too large: look in Postgres                33 bytes
//! ```
//!
//! PENDING stays within the 44 bytes that Redis keeps in one allocation with the object's header.
//!
//! Other bytes are `CacheEntry::Corrupt` and never cause a panic.

use bytes::Bytes;

use super::request::{Fingerprint, Request};
use super::response::StoredResponse;

const PENDING: u8 = b'P';
const COMPLETED: u8 = b'C';
const POINTER: u8 = b'L';

const TOKEN: usize = 8;
const PREFIX: usize = 1 + Fingerprint::LENGTH;

pub(super) type Pending = [u8; PREFIX + TOKEN];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CacheEntry {
    Pending,
    Completed(StoredResponse),
    /// The request completed, and its response is in Postgres.
    Pointer,
    Mismatch,
    Corrupt,
}

impl CacheEntry {
    /// Accepts any of the request's fingerprints.
    pub(super) fn of(value: &Bytes, request: &Request) -> Self {
        match (Self::decode(value.clone(), request.fingerprint()), request.former_fingerprint()) {
            (Self::Mismatch, Some(former)) => Self::decode(value.clone(), former),
            (entry, _) => entry,
        }
    }

    fn decode(mut value: Bytes, fingerprint: &Fingerprint) -> Self {
        if value.len() < PREFIX {
            return Self::Corrupt;
        }
        let rest = value.split_off(PREFIX);
        let state = value.first().copied();
        let is_ours = value.get(1..) == Some(fingerprint.as_bytes().as_slice());
        match (state, rest.len()) {
            (Some(PENDING), TOKEN) | (Some(POINTER), 0) | (Some(COMPLETED), _) if !is_ours => {
                Self::Mismatch
            }
            (Some(PENDING), TOKEN) => Self::Pending,
            (Some(POINTER), 0) => Self::Pointer,
            (Some(COMPLETED), _) => {
                StoredResponse::decode(rest).map_or(Self::Corrupt, Self::Completed)
            }
            _ => Self::Corrupt,
        }
    }
}

pub(super) fn pending(fingerprint: &Fingerprint, token: u64) -> Pending {
    let mut all = [PENDING; PREFIX + TOKEN];
    let tail = token.to_be_bytes();
    for (to, from) in all.iter_mut().skip(1).zip(fingerprint.as_bytes().iter().chain(&tail)) {
        *to = *from;
    }
    all
}

/// POINTER if the response is longer than `bytes_max`.
pub(super) fn completed(pending: &Pending, response: &StoredResponse, bytes_max: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(PREFIX + 64 + response.body().len().min(bytes_max));
    value.push(COMPLETED);
    value.extend(pending.iter().skip(1).take(Fingerprint::LENGTH));
    if response.body().len() <= bytes_max {
        response.encode(&mut value);
    }
    if response.body().len() > bytes_max || value.len() - PREFIX > bytes_max {
        value.truncate(PREFIX);
        if let Some(state) = value.first_mut() {
            *state = POINTER;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn fingerprint() -> Fingerprint {
        Fingerprint::of("POST", "/orders", b"{}")
    }

    fn responses() -> impl Strategy<Value = StoredResponse> {
        let name = vec(proptest::sample::select(b"azAZ09-_~!".to_vec()), 1..200);
        let value = vec(prop_oneof![Just(b'\t'), b' '..=b'~'], 0..400);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let header = (name, value).prop_map(move |(name, value)| (text(name), text(value)));
        (200..=599_u16, vec(header, 0..10), vec(any::<u8>(), 0..2_000))
            .prop_map(|(status, headers, body)| StoredResponse::new(status, headers, body).unwrap())
    }

    proptest! {
        #[test]
        fn every_response_decodes_to_itself(response in responses()) {
            let value = completed(&pending(&fingerprint(), 1), &response, usize::MAX);
            let entry = CacheEntry::decode(value.into(), &fingerprint());
            prop_assert_eq!(entry, CacheEntry::Completed(response));
        }

        #[test]
        fn a_value_is_the_response_up_to_the_limit_and_a_pointer_beyond(response in responses()) {
            let whole = completed(&pending(&fingerprint(), 1), &response, usize::MAX);
            let length = whole.len() - PREFIX;
            prop_assert_eq!(&completed(&pending(&fingerprint(), 1), &response, length), &whole);
            let value = completed(&pending(&fingerprint(), 1), &response, length - 1);
            prop_assert_eq!(value.len(), PREFIX);
            prop_assert_eq!(CacheEntry::decode(value.into(), &fingerprint()), CacheEntry::Pointer);
        }

        #[test]
        fn another_fingerprint_is_a_mismatch_in_every_state(response in responses(), token: u64) {
            let other = Fingerprint::of("POST", "/orders", b"{\"other\":1}");
            let values = [
                pending(&fingerprint(), token).to_vec(),
                completed(&pending(&fingerprint(), 1), &response, usize::MAX),
                completed(&pending(&fingerprint(), 1), &response, 0),
            ];
            for value in values {
                prop_assert_eq!(CacheEntry::decode(value.into(), &other), CacheEntry::Mismatch);
            }
        }

        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
            CacheEntry::decode(bytes.into(), &fingerprint());
        }

        /// Most random bytes fail at their first byte, so these inputs are wrong in one place.
        #[test]
        fn a_damaged_value_is_decoded_without_a_panic(
            response in responses(), at: proptest::sample::Index, bytes in vec(any::<u8>(), 0..12),
        ) {
            let mut value = completed(&pending(&fingerprint(), 1), &response, usize::MAX);
            let at = at.index(value.len());
            value.splice(at..value.len().min(at + bytes.len()), bytes);
            CacheEntry::decode(value.into(), &fingerprint());
        }
    }

    #[test]
    fn pending_is_fingerprint_and_token_in_one_allocation_of_redis() {
        let whole = pending(&fingerprint(), 0x0102_0304_0506_0708);
        assert_eq!(whole[..PREFIX], [[b'P'].as_slice(), fingerprint().as_bytes()].concat());
        assert_eq!(whole[PREFIX..], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(whole.len() <= 44, "OBJ_ENCODING_EMBSTR_SIZE_LIMIT of Redis");
        assert_eq!(
            CacheEntry::decode(Bytes::from_owner(whole), &fingerprint()),
            CacheEntry::Pending
        );
    }

    #[test]
    fn a_value_in_no_known_format_is_corrupt() {
        let prefix = |state: u8| [[state].as_slice(), fingerprint().as_bytes()].concat();
        for value in [
            Vec::new(),
            b"1".to_vec(),
            vec![PENDING; PREFIX - 1],
            prefix(PENDING),
            [prefix(PENDING), vec![0; TOKEN + 1]].concat(),
            [prefix(POINTER), vec![0]].concat(),
            prefix(COMPLETED),
            [prefix(COMPLETED), vec![0, 7, 0]].concat(),
            prefix(b'X'),
        ] {
            assert_eq!(
                CacheEntry::decode(value.clone().into(), &fingerprint()),
                CacheEntry::Corrupt,
                "{value:?}"
            );
        }
    }
}
