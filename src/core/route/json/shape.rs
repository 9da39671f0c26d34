//! Infers the schema of a JSON document like Debezium.
//!
//! `Mixed` means that Debezium forwards the text unchanged. Nulls and empty arrays are omitted,
//! unless they are kept or a sibling has a type. All objects of an array get the members of all.

use std::collections::HashMap;

use crate::json::{Json, Members as JsonMembers, Number};
use crate::route::format::Members as Kept;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::route) enum Shape {
    Nothing,
    /// Elements of an empty array that is kept.
    Unknown,
    Boolean,
    Int32,
    Int64,
    Float64,
    /// An integer beyond 64 bits, at which Debezium stops.
    Huge,
    Text,
    Array(Box<Shape>),
    Struct(Members),
    /// Several types, at which Debezium stops.
    Several,
}

#[derive(Debug, Clone, Default)]
pub(in crate::route) struct Members {
    pub(in crate::route) shapes: Vec<(String, Shape)>,
    places: HashMap<String, usize>,
    /// True if objects with different members were merged. Connect's schema then says that the
    /// object is not optional.
    pub(in crate::route) are_merged: bool,
}

impl Members {
    pub(in crate::route) fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    fn of(shapes: Vec<(String, Shape)>) -> Self {
        let numbered = shapes.iter().enumerate();
        let places = numbered.map(|(place, (name, _))| (name.clone(), place)).collect();
        Self { shapes, places, are_merged: false }
    }
}

impl PartialEq for Members {
    fn eq(&self, other: &Self) -> bool {
        self.shapes == other.shapes && self.are_merged == other.are_merged
    }
}

impl Eq for Members {}

impl Shape {
    pub(in crate::route) fn has_schema(&self) -> bool {
        match self {
            Self::Huge | Self::Several => false,
            Self::Array(element) => element.has_schema(),
            Self::Struct(members) => members.shapes.iter().all(|(_, shape)| shape.has_schema()),
            _ => true,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(in crate::route) struct Inference {
    pub(in crate::route) null_members: Kept,
    pub(in crate::route) empty_arrays: Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::route) struct Mixed;

pub(in crate::route) fn infer(document: &Json, inference: Inference) -> Result<Shape, Mixed> {
    inference.shape(document)?.ok_or(Mixed)
}

impl Inference {
    /// `None`: omitted.
    fn shape(self, json: &Json) -> Result<Option<Shape>, Mixed> {
        Ok(Some(match json {
            Json::Null => {
                return Ok((self.null_members == Kept::Keep).then_some(Shape::Nothing));
            }
            Json::Bool(_) => Shape::Boolean,
            Json::Number(number) => number_shape(number),
            Json::String(_) => Shape::Text,
            Json::Array(elements) if elements.is_empty() => {
                let kept = self.empty_arrays == Kept::Keep;
                return Ok(kept.then(|| Shape::Array(Box::new(Shape::Unknown))));
            }
            Json::Array(elements) => Shape::Array(Box::new(self.element(elements)?)),
            Json::Object(members) => Shape::Struct(self.members(members)?),
        }))
    }

    fn members(self, members: &JsonMembers) -> Result<Members, Mixed> {
        let mut shapes = Vec::with_capacity(members.len());
        for (name, json) in members {
            // Connect does not allow a field without a name.
            if name.is_empty() {
                return Err(Mixed);
            }
            if let Some(shape) = self.shape(json)? {
                shapes.push((name.clone(), shape));
            }
        }
        Ok(Members::of(shapes))
    }

    fn element(self, elements: &[Json]) -> Result<Shape, Mixed> {
        let mut typed = elements.iter().filter(|element| !element.is_null());
        let Some(first) = typed.next() else {
            return self.shape(&Json::Null)?.ok_or(Mixed);
        };
        if typed.any(|element| kind(element) != kind(first)) {
            return Err(Mixed);
        }
        if !first.is_object() {
            return self.nested(first, elements);
        }
        let mut objects = elements.iter().filter_map(Json::as_object);
        let mut merged =
            objects.next().map(|first| self.members(first)).transpose()?.unwrap_or_default();
        for members in objects {
            merge_members(&mut merged, self.members(members)?);
        }
        Ok(Shape::Struct(merged))
    }

    /// The first non-null element's shape, unless other nested arrays are wider.
    fn nested(self, first: &Json, elements: &[Json]) -> Result<Shape, Mixed> {
        let mut shape = self.shape(first)?.ok_or(Mixed)?;
        if first.is_array() {
            // The work would double with every level.
            let others = elements.iter().filter(|element| !std::ptr::eq(*element, first));
            for element in others.filter(|element| element.is_array()) {
                if let Some(other) = self.shape(element)? {
                    merge(&mut shape, other);
                }
            }
        }
        Ok(shape)
    }
}

fn number_shape(number: &Number) -> Shape {
    match number.as_i64() {
        Some(whole) if i32::try_from(whole).is_ok() => Shape::Int32,
        Some(_) => Shape::Int64,
        None if number.is_whole() => Shape::Huge,
        None => Shape::Float64,
    }
}

fn kind(json: &Json) -> u8 {
    match json {
        Json::Null => 0,
        Json::Bool(_) => 1,
        Json::String(_) => 2,
        Json::Array(_) => 3,
        Json::Object(_) => 4,
        Json::Number(number) => match number_shape(number) {
            Shape::Int32 => 5,
            Shape::Int64 => 6,
            Shape::Huge => 7,
            _ => 8,
        },
    }
}

fn merge(shape: &mut Shape, other: Shape) {
    match (&mut *shape, other) {
        (Shape::Struct(members), Shape::Struct(others)) => merge_members(members, others),
        (Shape::Array(element), Shape::Array(other)) => merge(element, *other),
        (Shape::Nothing | Shape::Unknown, other) => *shape = other,
        (_, Shape::Nothing | Shape::Unknown) => {}
        (shape, other) if *shape == other => {}
        (shape, _) => *shape = Shape::Several,
    }
}

fn merge_members(members: &mut Members, others: Members) {
    if *members == others {
        return;
    }
    members.are_merged = true;
    for (name, other) in others.shapes {
        let place = members.places.get(&name).copied();
        if let Some((_, shape)) = place.and_then(|place| members.shapes.get_mut(place)) {
            merge(shape, other);
        } else {
            members.places.insert(name.clone(), members.shapes.len());
            members.shapes.push((name, other));
        }
    }
}
