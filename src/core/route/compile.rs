//! Compiles a [`RouteSpec`] into a [`Router`].
//!
//! The router's columns are requested from the [`OutboxSpec`].

use super::decisions::{Decisions, Rule, RulePattern, RuleTopic};
use super::format::{FormatSpec, Members, MissingColumn, ValueFormat};
use super::java_regex::Matcher;
use super::router::{Destination, HeaderContent, HeaderSource, Router};
use super::source::{NamedColumn, SourceColumn};
use super::spec::{
    DestinationSpec, FieldSpec, PatternSpec, RouteSpec, RouteSpecError, RuleAction, RuleSpec,
    TimestampSource,
};
use super::template::{TopicTemplate, WHOLE_VALUE};
use super::trace::{TRACEPARENT_HEADER, TRACESTATE_HEADER};
use super::value::Encoder;
use crate::outbox::{OutboxSpec, Wanted};

impl Router {
    /// Compiles a spec, and requests its columns.
    pub fn compile(spec: &RouteSpec, outbox: &mut OutboxSpec) -> Result<Self, RouteSpecError> {
        if spec.id_header.is_empty() {
            return Err(RouteSpecError::Empty { what: "id header's name" });
        }
        check_envelope(spec)?;
        let message_nulls =
            if outbox.messages().null_is_missing { Members::Drop } else { Members::Keep };
        let mut compiler = Compiler { spec, outbox, destinations: Vec::new() };
        let id = compiler.source(&spec.id, "id column", true)?;
        let tells_version =
            !spec.envelope.is_empty() && spec.format.value == ValueFormat::JsonSchema;
        let schema_version = spec.schema_version.as_ref().filter(|_| tells_version);
        let encoder = Encoder {
            format: spec.format.clone(),
            payload: compiler.source(&spec.payload, "payload column", true)?,
            by: compiler.source(&spec.by, "column to route by", true)?,
            envelope: compiler.fields(&spec.envelope, "envelope's column")?,
            schema_version: compiler.optional(schema_version, "schema version")?,
            empty_payload: spec.empty_payload,
            message_nulls,
            bytes_max: spec.max_record_bytes,
        };
        let timestamp = match &spec.timestamp {
            TimestampSource::Commit => None,
            TimestampSource::Column { name, unit } => {
                Some((compiler.source(name, "timestamp column", true)?, *unit))
            }
        };
        let cloud_event = match spec.format.value {
            ValueFormat::CloudEventsBinary | ValueFormat::CloudEventsStructured => {
                let event_type = compiler.source(&spec.event_type, "event type's column", true)?;
                Some((event_type, compiler.source(&spec.subject, "subject's column", true)?))
            }
            _ => None,
        };
        let decisions = compiler.decisions()?;
        let destinations = compiler.destinations;
        Ok(Self {
            id,
            encoder,
            destinations,
            decisions,
            id_header: spec.id_header.clone(),
            max_record_bytes: spec.max_record_bytes,
            lsn_header: spec.lsn_header,
            origin: spec.origin,
            letter_source: Vec::new(),
            timestamp,
            cloud_event,
            found: super::router::Found::default(),
        })
    }
}

fn check_envelope(spec: &RouteSpec) -> Result<(), RouteSpecError> {
    let FormatSpec { value, .. } = spec.format;
    if !spec.envelope.is_empty() && !value.takes_envelope() {
        return Err(RouteSpecError::Envelope { format: value.as_str() });
    }
    check_members(&spec.envelope)
}

/// Checks that the columns can share an object with the payload.
pub fn check_members(envelope: &[FieldSpec]) -> Result<(), RouteSpecError> {
    let mut names = vec!["payload"];
    for field in envelope {
        if names.contains(&field.name.as_str()) {
            return Err(RouteSpecError::MemberTwice { name: field.name.clone() });
        }
        names.push(&field.name);
    }
    Ok(())
}

struct Compiler<'a> {
    spec: &'a RouteSpec,
    outbox: &'a mut OutboxSpec,
    destinations: Vec<Destination>,
}

impl Compiler<'_> {
    fn source(
        &mut self,
        column: &str,
        what: &'static str,
        is_required: bool,
    ) -> Result<SourceColumn, RouteSpecError> {
        if column.is_empty() {
            return Err(RouteSpecError::Empty { what });
        }
        let wanted = if is_required { Wanted::required(column) } else { Wanted::optional(column) };
        Ok(SourceColumn { slot: self.outbox.want(wanted), column: column.to_owned(), is_required })
    }

    fn optional(
        &mut self,
        column: Option<&String>,
        what: &'static str,
    ) -> Result<Option<SourceColumn>, RouteSpecError> {
        let is_required = self.spec.missing_column == MissingColumn::Refuse;
        column.map(|column| self.source(column, what, is_required)).transpose()
    }

    fn fields(
        &mut self,
        fields: &[FieldSpec],
        what: &'static str,
    ) -> Result<Vec<NamedColumn>, RouteSpecError> {
        let is_required = self.spec.missing_column == MissingColumn::Refuse;
        let field = |field: &FieldSpec| {
            let source = self.source(&field.column, what, is_required)?;
            Ok(NamedColumn { source, name: field.name.clone() })
        };
        fields.iter().map(field).collect()
    }

    fn destination(&mut self, of: &DestinationSpec) -> Result<usize, RouteSpecError> {
        let spec = self.spec;
        let key = self.source(of.key.as_ref().unwrap_or(&spec.key), "key column", true)?;
        let fields =
            self.fields(of.headers.as_ref().unwrap_or(&spec.headers), "header's column")?;
        let partition = of.partition.as_ref().or(spec.partition.as_ref());
        let partition = self.optional(partition, "partition column")?;
        let column = |NamedColumn { source, name }| HeaderSource {
            source,
            name,
            content: HeaderContent::Column,
        };
        let mut headers: Vec<HeaderSource> = fields.into_iter().map(column).collect();
        if let Some(column) = &spec.traceparent {
            for name in [TRACEPARENT_HEADER, TRACESTATE_HEADER] {
                if !headers.iter().any(|header| header.name == name) {
                    let source = self.source(column, "traceparent column", false)?;
                    let content = HeaderContent::Trace;
                    headers.push(HeaderSource { source, name: name.to_owned(), content });
                }
            }
        }
        self.destinations.push(Destination { key, headers, partition });
        Ok(self.destinations.len() - 1)
    }

    fn decisions(&mut self) -> Result<Decisions, RouteSpecError> {
        let spec = self.spec;
        let template = TopicTemplate::compile(&spec.regex, &spec.topic)?;
        let destination = self.destination(&DestinationSpec::default())?;
        let mut consulted = vec![self.source(&spec.by, "column to route by", true)?];
        let mut rules = Vec::with_capacity(spec.rules.len());
        for rule in &spec.rules {
            rules.push(self.rule(rule, &mut consulted)?);
        }
        Ok(Decisions::new(rules, spec.topics.clone(), consulted, template, destination))
    }

    fn rule(
        &mut self,
        rule: &RuleSpec,
        consulted: &mut Vec<SourceColumn>,
    ) -> Result<Rule, RouteSpecError> {
        let source = self.source(&rule.column, "rule's column", true)?;
        let known = consulted.iter().position(|known| known.slot == source.slot);
        let number = known.unwrap_or(consulted.len());
        if known.is_none() {
            consulted.push(source);
        }
        let (pattern, regex) = match &rule.pattern {
            PatternSpec::Glob(glob) => (RulePattern::Glob(glob.clone()), WHOLE_VALUE),
            PatternSpec::Regex(regex) => {
                (RulePattern::Regex(Box::new(Matcher::compile(regex)?)), regex.as_str())
            }
        };
        let send = match &rule.action {
            RuleAction::Drop => None,
            RuleAction::Send(to) => {
                let template = to.topic.as_ref().map(|topic| TopicTemplate::compile(regex, topic));
                let template = template.transpose()?;
                Some(RuleTopic { template, destination: self.destination(to)? })
            }
        };
        Ok(Rule { consulted: number, pattern, send })
    }
}
