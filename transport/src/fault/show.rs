//! Rules as text: what [`Rules`]' parser reads back to the same rules.

use super::rule::{Action, Hold, Part, QpSelector, Rate, Rule, Rules, Window};
use super::spans::{PsnSpans, Spans};
use core::fmt::{self, Display, Formatter};
use core::time::Duration;

impl Display for Rules {
    /// The seed, if there is one, and the rules, separated by `; `.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(seed) = self.seed() {
            write!(f, "seed={seed}")?;
            separator = "; ";
        }
        for rule in self.list() {
            write!(f, "{separator}{rule}")?;
            separator = "; ";
        }
        Ok(())
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        word(f, "", self.rate.as_ref())?;
        word(f, "", self.dir.map(super::Direction::name).as_ref())?;
        word(f, "qp=", self.qp.as_ref())?;
        word(f, "peer=", self.peer.map(roxe_wire::Gid::to_ip).as_ref())?;
        word(f, "at=", self.at.as_ref())?;
        word(f, "service=", self.services.as_ref())?;
        word(f, "op=", self.ops.as_ref())?;
        word(f, "psn=", self.psn.as_ref())?;
        word(f, "msg=", self.msg.as_ref())?;
        word(f, "nth=", self.nth.as_ref())?;
        word(f, "times=", self.times.as_ref())
    }
}

/// One word of a rule, if it is said.
fn word<T: Display>(f: &mut Formatter<'_>, key: &str, value: Option<&T>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {key}{value}"))
}

impl Display for Action {
    /// The action with its own words.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Duplicate { copies, after } => {
                f.write_str("duplicate")?;
                if *copies != 1 {
                    write!(f, " copies={copies}")?;
                }
                if after.max.is_zero() { Ok(()) } else { write!(f, " by={after}") }
            }
            Self::Delay(hold) => write!(f, "delay by={hold}"),
            Self::Reorder(by) if *by == Self::REORDER_BY => f.write_str("reorder"),
            Self::Reorder(by) => write!(f, "reorder by={}", Time(*by)),
            Self::Corrupt(part) => write!(f, "corrupt {}", Part::name(*part)),
            Self::Ecn => f.write_str("ecn"),
            Self::Rnr => f.write_str("rnr"),
            Self::Forge(forged) => write!(f, "{forged}"),
        }
    }
}

impl Display for Hold {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Time(self.min))?;
        if self.min == self.max { Ok(()) } else { write!(f, "..{}", Time(self.max)) }
    }
}

impl Display for Window {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}..", Time(self.from))?;
        self.until.map_or(Ok(()), |until| write!(f, "{}", Time(until)))
    }
}

/// A time in the largest unit that gives a whole number; what is below a microsecond is cut off.
struct Time(Duration);

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        match (micros % 1_000_000, micros % 1_000) {
            (0, _) => write!(f, "{}s", micros / 1_000_000),
            (_, 0) => write!(f, "{}ms", micros / 1_000),
            _ => write!(f, "{micros}us"),
        }
    }
}

impl Display for Rate {
    /// Percent, without needless decimals.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (whole, micro) = (self.micro_percent() / 1_000_000, self.micro_percent() % 1_000_000);
        if micro == 0 {
            return write!(f, "{whole}%");
        }
        let decimals = format!("{micro:06}");
        write!(f, "{whole}.{}%", decimals.trim_end_matches('0'))
    }
}

impl Display for QpSelector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(qpn) => write!(f, "{:#x}", qpn.get()),
            Self::Ordinal(ordinal) => write!(f, "#{ordinal}"),
        }
    }
}

impl Display for Spans {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (from, to) in self.ranges() {
            match *to {
                to if to == *from => write!(f, "{separator}{from}")?,
                u64::MAX => write!(f, "{separator}{from}..")?,
                to => write!(f, "{separator}{from}..{to}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl Display for PsnSpans {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (from, to) in self.ranges() {
            write!(f, "{separator}{:#x}", from.get())?;
            if to != from {
                write!(f, "..{:#x}", to.get())?;
            }
            separator = ",";
        }
        Ok(())
    }
}
