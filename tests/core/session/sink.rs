//! The sink of a simulated session: one of the two ways of delivery, and a note of what was handed over.

use postrider::lsn::Lsn;
use postrider::pipeline::{Confirmation, Mark, Outgoing};
use postrider::sink::{Reached, SendError, Sink};
use postrider::time::Instant;
use postrider::transaction::Transactional;

use crate::session::broker::{Died, Producer};
use crate::session::cluster::TransactionalProducer;

/// How records are delivered.
pub(crate) enum Delivery {
    AtLeastOnce(Box<Producer>),
    ExactlyOnce(Box<Transactional<TransactionalProducer>>),
}

pub(crate) struct ModelSink {
    pub(crate) delivery: Delivery,
    /// Ids of the rows of which something was taken.
    pub(crate) taken: Vec<String>,
}

impl ModelSink {
    pub(crate) fn set_capacity(&mut self, capacity: usize) {
        match &mut self.delivery {
            Delivery::AtLeastOnce(producer) => producer.capacity = capacity,
            Delivery::ExactlyOnce(machine) => machine.client_mut().capacity = capacity,
        }
    }

    /// Which partitions make no progress.
    pub(crate) fn held(&mut self) -> &mut [bool] {
        match &mut self.delivery {
            Delivery::AtLeastOnce(producer) => &mut producer.held,
            Delivery::ExactlyOnce(machine) => &mut machine.client_mut().held,
        }
    }

    pub(crate) fn kill(&mut self) {
        match &mut self.delivery {
            Delivery::AtLeastOnce(producer) => producer.is_dead = true,
            Delivery::ExactlyOnce(machine) => machine.client_mut().died = Some(Died::Fatally),
        }
    }
}

impl Sink for ModelSink {
    type Error = Died;

    fn send(&mut self, now: Instant, outgoing: &Outgoing<'_>) -> Result<(), SendError<Died>> {
        match &mut self.delivery {
            Delivery::AtLeastOnce(producer) => producer.send(now, outgoing)?,
            Delivery::ExactlyOnce(machine) => machine.send(now, outgoing)?,
        }
        let id = outgoing.record.headers.iter().find(|(name, _)| *name == "id");
        let id = id.and_then(|(_, value)| *value).unwrap_or_default();
        self.taken.push(String::from_utf8_lossy(id).into_owned());
        Ok(())
    }

    fn poll(&mut self, now: Instant, confirmations: &mut Vec<Confirmation>) -> Result<(), Died> {
        match &mut self.delivery {
            Delivery::AtLeastOnce(producer) => producer.poll(now, confirmations),
            Delivery::ExactlyOnce(machine) => machine.poll(now, confirmations),
        }
    }

    fn begin_at(&mut self, mark: Mark) {
        if let Delivery::ExactlyOnce(machine) = &mut self.delivery {
            machine.begin_at(mark);
        }
    }

    fn reached(&mut self, now: Instant, reached: Reached) -> Result<(), Died> {
        match &mut self.delivery {
            Delivery::AtLeastOnce(_) => Ok(()),
            Delivery::ExactlyOnce(machine) => machine.reached(now, reached),
        }
    }

    fn takes_records(&self) -> bool {
        match &self.delivery {
            Delivery::AtLeastOnce(_) => true,
            Delivery::ExactlyOnce(machine) => machine.takes_records(),
        }
    }

    fn has_enough(&self) -> bool {
        match &self.delivery {
            Delivery::AtLeastOnce(_) => false,
            Delivery::ExactlyOnce(machine) => machine.has_enough(),
        }
    }

    fn may_end_within(&self) -> bool {
        match &self.delivery {
            Delivery::AtLeastOnce(_) => false,
            Delivery::ExactlyOnce(machine) => machine.may_end_within(),
        }
    }

    fn kept(&self) -> Option<Lsn> {
        match &self.delivery {
            Delivery::AtLeastOnce(_) => None,
            Delivery::ExactlyOnce(machine) => machine.kept(),
        }
    }
}
