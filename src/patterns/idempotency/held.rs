//! What Redis holds under a key: one compact string.
//!
//! ```text
//! PENDING    P  fingerprint (32)  fencing token (8, big-endian)                            41 bytes
//! COMPLETED  C  fingerprint (32)  status (2)  headers (1 + ..)  body                       36 + ..
//! POINTER    L  fingerprint (32)  the answer is too large: look in Postgres                33 bytes
//! ```
//!
//! PENDING stays within the 44 bytes that Redis keeps in one allocation with the object's header.
//!
//! Enters: any bytes. Leaves: a [`Held`]; bytes that are none of the above are [`Held::Garbage`], never
//! a panic.

use bytes::Bytes;

use super::answer::Answer;
use super::request::Fingerprint;

const PENDING: u8 = b'P';
const COMPLETED: u8 = b'C';
const POINTER: u8 = b'L';

/// Bytes of a fencing token.
const TOKEN: usize = 8;
const HEAD: usize = 1 + Fingerprint::LENGTH;

/// What PENDING begins with; the script adds the token.
pub(super) type PendingHead = [u8; HEAD];
/// The whole of PENDING, which only its owner knows.
pub(super) type Pending = [u8; HEAD + TOKEN];

/// The state that a value stands for, as one request sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Held {
    /// The same request is at work.
    Pending,
    /// It was answered so.
    Completed(Answer),
    /// It was answered; Postgres knows how.
    Pointer,
    /// The key belongs to another request.
    Mismatch,
    /// Nothing that this room writes.
    Garbage,
}

impl Held {
    pub(super) fn read(mut value: Bytes, fingerprint: &Fingerprint) -> Self {
        if value.len() < HEAD {
            return Self::Garbage;
        }
        let rest = value.split_off(HEAD);
        let state = value.first().copied();
        let is_ours = value.get(1..) == Some(fingerprint.as_bytes().as_slice());
        match (state, rest.len()) {
            (Some(PENDING), TOKEN) | (Some(POINTER), 0) | (Some(COMPLETED), _) if !is_ours => {
                Self::Mismatch
            }
            (Some(PENDING), TOKEN) => Self::Pending,
            (Some(POINTER), 0) => Self::Pointer,
            (Some(COMPLETED), _) => Answer::decode(rest).map_or(Self::Garbage, Self::Completed),
            _ => Self::Garbage,
        }
    }
}

pub(super) fn pending_head(fingerprint: &Fingerprint) -> PendingHead {
    let mut head = [PENDING; HEAD];
    for (to, from) in head.iter_mut().skip(1).zip(fingerprint.as_bytes()) {
        *to = *from;
    }
    head
}

pub(super) fn pending(fingerprint: &Fingerprint, token: u64) -> Pending {
    let mut all = [PENDING; HEAD + TOKEN];
    let tail = token.to_be_bytes();
    for (to, from) in all.iter_mut().skip(1).zip(fingerprint.as_bytes().iter().chain(&tail)) {
        *to = *from;
    }
    all
}

/// COMPLETED with the answer, or the pointer where that would be longer than `bytes_max`.
pub(super) fn completed(fingerprint: &Fingerprint, answer: &Answer, bytes_max: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEAD + 64 + answer.body().len().min(bytes_max));
    value.push(COMPLETED);
    value.extend_from_slice(fingerprint.as_bytes());
    if answer.body().len() <= bytes_max {
        answer.encode(&mut value);
    }
    if answer.body().len() > bytes_max || value.len() - HEAD > bytes_max {
        value.truncate(HEAD);
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

    fn answers() -> impl Strategy<Value = Answer> {
        let name = vec(proptest::sample::select(b"azAZ09-_~!".to_vec()), 1..200);
        let value = vec(prop_oneof![Just(b'\t'), b' '..=b'~'], 0..400);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let header = (name, value).prop_map(move |(name, value)| (text(name), text(value)));
        (200..=599_u16, vec(header, 0..10), vec(any::<u8>(), 0..2_000))
            .prop_map(|(status, headers, body)| Answer::new(status, headers, body).unwrap())
    }

    proptest! {
        #[test]
        fn every_answer_comes_back_as_it_was(answer in answers()) {
            let value = completed(&fingerprint(), &answer, usize::MAX);
            let held = Held::read(value.into(), &fingerprint());
            prop_assert_eq!(held, Held::Completed(answer));
        }

        #[test]
        fn a_value_is_the_answer_up_to_the_limit_and_a_pointer_beyond(answer in answers()) {
            let whole = completed(&fingerprint(), &answer, usize::MAX);
            let length = whole.len() - HEAD;
            prop_assert_eq!(&completed(&fingerprint(), &answer, length), &whole);
            let value = completed(&fingerprint(), &answer, length - 1);
            prop_assert_eq!(value.len(), HEAD);
            prop_assert_eq!(Held::read(value.into(), &fingerprint()), Held::Pointer);
        }

        #[test]
        fn another_fingerprint_is_a_mismatch_in_every_state(answer in answers(), token: u64) {
            let other = Fingerprint::of("POST", "/orders", b"{\"other\":1}");
            let values = [
                pending(&fingerprint(), token).to_vec(),
                completed(&fingerprint(), &answer, usize::MAX),
                completed(&fingerprint(), &answer, 0),
            ];
            for value in values {
                prop_assert_eq!(Held::read(value.into(), &other), Held::Mismatch);
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
            Held::read(bytes.into(), &fingerprint());
        }

        /// Most random bytes fail at their first; these are wrong in one place.
        #[test]
        fn a_damaged_value_is_read_without_a_panic(
            answer in answers(), at: proptest::sample::Index, bytes in vec(any::<u8>(), 0..12),
        ) {
            let mut value = completed(&fingerprint(), &answer, usize::MAX);
            let at = at.index(value.len());
            value.splice(at..value.len().min(at + bytes.len()), bytes);
            Held::read(value.into(), &fingerprint());
        }
    }

    #[test]
    fn pending_is_its_head_and_the_token_in_one_allocation_of_redis() {
        let whole = pending(&fingerprint(), 0x0102_0304_0506_0708);
        assert_eq!(whole[..HEAD], pending_head(&fingerprint()));
        assert_eq!(whole[HEAD..], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(whole.len() <= 44, "OBJ_ENCODING_EMBSTR_SIZE_LIMIT of Redis");
        assert_eq!(Held::read(Bytes::from_owner(whole), &fingerprint()), Held::Pending);
    }

    #[test]
    fn what_nobody_here_writes_is_garbage() {
        let head = |state: u8| [[state].as_slice(), fingerprint().as_bytes()].concat();
        for value in [
            Vec::new(),
            b"1".to_vec(),
            vec![PENDING; HEAD - 1],
            head(PENDING),
            [head(PENDING), vec![0; TOKEN + 1]].concat(),
            [head(POINTER), vec![0]].concat(),
            head(COMPLETED),
            [head(COMPLETED), vec![0, 7, 0]].concat(),
            head(b'X'),
        ] {
            assert_eq!(
                Held::read(value.clone().into(), &fingerprint()),
                Held::Garbage,
                "{value:?}"
            );
        }
    }
}
