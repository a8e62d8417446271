//! Parses the output of the stock programs of librdmacm, without I/O.

use crate::pair::{KILLED, Outcome, counter};
use crate::perftest;

/// Required output of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// rping: both show each ping once, in order, and the client found no wrong byte.
    Pings(usize),
    /// rping with one server for all: each client prints its pings; the server prints the end of
    /// each client.
    PingsOfMany {
        /// Number of pings of each client.
        pings: usize,
        /// Number of clients whose exit the server may miss.
        missed: usize,
    },
    /// Server and client print all these words.
    Words(&'static [&'static str]),
    /// cmtime: the client prints what each step took.
    Steps,
    /// Programs of rsockets: each end that does not stay prints one line of results, with this in
    /// its first column.
    Row(&'static str),
    /// perftest: each end prints one line, for this number of iterations.
    Figures(u32),
    /// Only the client prints a line: it measures latencies of one-sided operations.
    ClientFigures(u32),
}

/// The steps of cmtime.
const STEPS: [&str; 7] =
    ["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"];

/// Printed by a persistent rping server when a client leaves.
const LEFT: &str = "server DISCONNECT EVENT";

/// Words that no good run prints.
const BAD: [&str; 6] = ["mismatch", "bogus", "error:", "Error", "failed", "failure"];

/// Reasons for which perftest refuses to start.
const REFUSALS: [&str; 3] =
    ["UC is not supported in librdmacm", "XRC does not support RDMA_CM", "Address family for hostname not supported"];

/// Verdict on a program; an error describes what was wrong.
pub type Judged = Result<(), String>;

/// Returns true if a program exited with 0, or was still running and only reported its last message
/// as not acknowledged.
pub fn merely_waited(end: &Outcome) -> bool {
    let unacknowledged = |line: &str| line.contains("status 12");
    (end.ok || end.output.ends_with(KILLED)) && complaints(end).all(unacknowledged)
}

/// Returns the limit of the program that its output mentions.
pub fn refusal(end: &Outcome) -> Option<&'static str> {
    REFUSALS.into_iter().find(|words| end.output.contains(words))
}

impl Says {
    /// Checks that servers and clients exited with 0 and the required output. A server that `stays`
    /// must have run to the end.
    pub fn judge(self, servers: &[Outcome], clients: &[Outcome], stays: bool) -> Judged {
        let ended_well = |end: &Outcome| if stays { end.output.ends_with(KILLED) } else { end.ok };
        let judge = || {
            let done = |end: &Outcome| end.ok || lost_its_race(end);
            if let ([server], [client]) = (servers, clients)
                && lost_last_ack(server, client)
            {
                return nothing_bad(client).and_then(|()| self.printed(&[], clients, true));
            }
            let ill = servers.iter().find(|end| !ended_well(end)).or_else(|| clients.iter().find(|end| !done(end)));
            if let Some(end) = ill {
                return Err(format!("`{}` did not end well", end.command));
            }
            servers.iter().chain(clients).try_for_each(nothing_bad)?;
            self.printed(servers, clients, stays)
        };
        judge().map_err(|why| servers.iter().chain(clients).fold(why, |text, end| text + "\n" + &shown(end)))
    }

    /// Returns true if a server that stays has printed everything about its clients that it prints.
    pub fn has_seen_all(self, output: &str, clients: usize) -> bool {
        match self {
            Self::PingsOfMany { .. } => output.matches(LEFT).count() >= clients,
            Self::Words(words) => words.iter().all(|words| output.contains(words)),
            _ => true,
        }
    }

    fn printed(self, servers: &[Outcome], clients: &[Outcome], stays: bool) -> Judged {
        let mut all = servers.iter().chain(clients);
        // A server prints the rates that its client tells it.
        let lacks_clock = all.clone().any(|end| perftest::lacks_clock(&end.output));
        match self {
            Self::Pings(count) => all.try_for_each(|end| pings(end, count)),
            Self::PingsOfMany { pings: count, missed } => {
                clients.iter().try_for_each(|end| pings(end, count))?;
                servers.iter().try_for_each(|end| ends_of(end, clients.len(), missed))
            }
            Self::Words(words) => all.try_for_each(|end| contains(end, words)),
            Self::Row(name) if stays => clients.iter().try_for_each(|end| row(end, name)),
            Self::Row(name) => all.try_for_each(|end| row(end, name)),
            Self::Steps => clients.iter().try_for_each(steps),
            Self::Figures(iterations) => all.try_for_each(|end| figures(end, iterations, lacks_clock)),
            Self::ClientFigures(iterations) => clients.iter().try_for_each(|end| figures(end, iterations, lacks_clock)),
        }
    }
}

/// Returns true for the server of `ib_write_lat` on a lossy network whose client succeeded and has
/// left. A client ends when it sees the last WRITE in its memory. If its acknowledgement of that
/// WRITE is lost, it is gone and cannot repeat it, and any card reports status 12. The client
/// reports how many packets its queue pair dropped because of its state.
fn lost_last_ack(server: &Outcome, client: &Outcome) -> bool {
    let all_but_one = |line: &str| {
        let counts = line.strip_prefix("scnt=").and_then(|counts| counts.split_once(", ccnt="));
        let counts = counts.and_then(|(sent, seen)| Some((sent.parse::<u64>().ok()?, seen.parse::<u64>().ok()?)));
        counts.is_some_and(|(sent, seen)| seen + 1 == sent)
    };
    server.command.starts_with("ib_write_lat ")
        && !server.ok
        && server.output.contains("Failed status 12")
        && complaints(server).all(|line| line.trim() == "Test exited with Error")
        && server.output.lines().any(all_but_one)
        && client.ok
        && counter(&client.output, "bad_state") > 0
}

/// Returns true for an rping that has done all its work and then lost a race with itself (fixed in
/// rdma-core 59): its event thread asks for another event after the main thread has destroyed the
/// channel, and ends the process with an error. As both threads exit, roxe's final output may be
/// missing.
pub fn lost_its_race(end: &Outcome) -> bool {
    let mut lines = end.output.lines().rev();
    end.command.contains("rping -c")
        && lines.next() == Some("[ended with exit status: 255]")
        && lines.next().is_some_and(|line| line.starts_with("rdma_get_cm_event: "))
}

/// The command and the end of its output. rping's lines can have 60,000 letters, and the exit
/// status stands at the end of one.
fn shown(end: &Outcome) -> String {
    const ENOUGH: usize = 25;
    let lines: Vec<String> = end.output.lines().map(shortened).collect();
    format!("$ {}\n{}", end.command, lines[lines.len().saturating_sub(ENOUGH)..].join("\n"))
}

fn shortened(line: &str) -> String {
    const HALF: usize = 80;
    let letters: Vec<char> = line.chars().collect();
    if letters.len() <= 2 * HALF {
        return line.to_owned();
    }
    let part = |letters: &[char]| letters.iter().collect::<String>();
    format!("{} ... {}", part(&letters[..HALF]), part(&letters[letters.len() - HALF..]))
}

/// The lines that no good run prints.
fn complaints(end: &Outcome) -> impl Iterator<Item = &str> {
    let theirs = end.output.lines().filter(|line| !line.contains("roxe: ") && !line.contains("(process "));
    theirs.filter(|line| BAD.iter().any(|bad| line.contains(bad)))
}

fn nothing_bad(end: &Outcome) -> Judged {
    match complaints(end).next() {
        Some(line) => Err(format!("`{}` says: {line}", end.command)),
        None => Ok(()),
    }
}

fn contains(end: &Outcome, words: &[&str]) -> Judged {
    match words.iter().find(|words| !end.output.contains(**words)) {
        Some(words) => Err(format!("`{}` does not say {words:?}", end.command)),
        None => Ok(()),
    }
}

/// `ping data: rdma-ping-N: ABC...`: the N are 0, 1, 2 and so on, and the letters begin with the
/// N-th from A on.
fn pings(end: &Outcome, count: usize) -> Judged {
    let lines = end.output.lines().filter_map(|line| line.split_once("ping data: rdma-ping-"));
    let lines: Vec<&str> = lines.map(|(_, rest)| rest).collect();
    if lines.len() != count {
        return Err(format!("`{}` shows {} pings instead of {count}", end.command, lines.len()));
    }
    match lines.iter().enumerate().find(|(n, line)| !is_ping(*n, line)) {
        Some((n, line)) => Err(format!("`{}`: ping {n} is {line:?}", end.command)),
        None => Ok(()),
    }
}

/// Returns true if `line` is the `n`-th message of rping: letters from `A` (65) to `z` (122),
/// repeated, starting one letter later each time.
fn is_ping(n: usize, line: &str) -> bool {
    let Some(letters) = line.strip_prefix(&format!("{n}: ")) else { return false };
    let first = 65 + n % 58;
    let expected = |place: usize| 65 + (first - 65 + place) % 58;
    !letters.is_empty() && letters.bytes().enumerate().all(|(place, letter)| usize::from(letter) == expected(place))
}

/// A persistent rping server prints the end of every client. The pings in its buffer are lost when
/// it is killed.
fn ends_of(end: &Outcome, clients: usize, missed: usize) -> Judged {
    match end.output.matches(LEFT).count() {
        seen if seen <= clients && seen + missed >= clients => Ok(()),
        seen => Err(format!("`{}` saw {seen} of {clients} clients leave", end.command)),
    }
}

/// `connect : 125.36 87.59 25869.00 6267.75`, and something was measured.
fn steps(end: &Outcome) -> Judged {
    let measured = |step: &&&str| {
        let of_step =
            |line: &str| line.split_once(':').filter(|(name, _)| name.trim() == **step).map(|(_, rest)| numbers(rest));
        end.output.lines().filter_map(of_step).any(|figures| figures.len() == 4 && figures[0] > 0.0)
    };
    match STEPS.iter().find(|step| !measured(step)) {
        Some(step) => Err(format!("`{}` does not tell what {step:?} took", end.command)),
        None => Ok(()),
    }
}

/// `custom    4k      20      5       800k        0.37s      0.02    1839.96`, once.
fn row(end: &Outcome, name: &str) -> Judged {
    let is_row = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words.as_slice(), [first, .., time, rate, each] if first.contains(name) && time.ends_with('s')
            && numbers(&format!("{rate} {each}")).len() == 2)
    };
    match end.output.lines().filter(is_row).count() {
        1 => Ok(()),
        rows => Err(format!("`{}` prints {rows} lines of results", end.command)),
    }
}

fn numbers(text: &str) -> Vec<f64> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn figures(end: &Outcome, iterations: u32, lacks_clock: bool) -> Judged {
    let rows = perftest::rows(&end.output);
    let is_measured = |row| lacks_clock || perftest::is_measured(row, &end.output);
    match rows.as_slice() {
        [row] if row.figures[0] == f64::from(iterations) && is_measured(row) => Ok(()),
        rows => Err(format!("`{}`: one line for {iterations} iterations was expected, not {rows:?}", end.command)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(output: &str) -> Outcome {
        Outcome { command: "x".into(), ok: true, output: output.into() }
    }

    const PINGS: &str = "ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyzAB\n\
                         ping data: rdma-ping-1: BCDEFG\n";

    #[test]
    fn zeros_of_a_server_are_accepted_if_its_client_lacks_the_clock() {
        let zeros = " 1024       50               0.00               0.00   \t\t   0.000000\n";
        let (server, lacks) = (end(zeros), end(&format!("Correlation coefficient r^2: 0.43 < 0.9\n{zeros}")));
        let judge = |client| Says::Figures(50).judge(std::slice::from_ref(&server), &[client], false);
        assert_eq!(judge(lacks), Ok(()));
        assert!(judge(end(zeros)).is_err());
    }

    #[test]
    fn pings_are_complete_and_in_order() {
        assert_eq!(pings(&end(PINGS), 2), Ok(()));
        assert!(pings(&end(PINGS), 3).is_err());
        assert!(pings(&end(&PINGS.replace("ping-1: B", "ping-1: C")), 2).is_err());
        assert!(pings(&end(&PINGS.replace("ping-1", "ping-2")), 2).is_err());
        assert!(pings(&end(&PINGS.replace("BCDEFG", "BCDEEG")), 2).is_err());
    }

    #[test]
    fn rping_message_starts_one_letter_later_each_time() {
        assert!(is_ping(57, "57: zABC"));
        assert!(is_ping(58, "58: ABC"));
        assert!(!is_ping(58, "58: BCD"));
        assert!(!is_ping(58, "58: "));
    }

    #[test]
    fn only_the_last_write_may_stay_unacknowledged() {
        let counts = "Completion with error at client\nFailed status 12: wr_id 0 syndrom 0x0\nscnt=1000, ccnt=999\nTest exited with Error\n";
        let server = |output: &str| Outcome { command: "ib_write_lat -R".into(), ok: false, output: output.into() };
        let client = end("#bytes #iterations\n1024 1000 6.5\nroxe0 (process 1): bad_state=6\n");
        assert!(lost_last_ack(&server(counts), &client));
        assert!(!lost_last_ack(&server(&counts.replace("999", "998")), &client));
        assert!(!lost_last_ack(&server(&counts.replace("status 12", "status 10")), &client));
        assert!(!lost_last_ack(&server(counts), &end("roxe0 (process 1): bad_state=0\n")));
    }

    #[test]
    fn staying_server_must_run_to_the_end() {
        let client = end(PINGS);
        let left = "server DISCONNECT EVENT...\n";
        let there = Outcome { ok: false, ..end(&format!("{left}{KILLED}")) };
        let says = Says::PingsOfMany { pings: 2, missed: 0 };
        assert_eq!(says.judge(std::slice::from_ref(&there), std::slice::from_ref(&client), true), Ok(()));
        assert!(says.judge(&[end(left)], std::slice::from_ref(&client), true).is_err());
        let two = [client, end(PINGS)];
        assert!(says.judge(std::slice::from_ref(&there), &two, true).is_err());
        let says = Says::PingsOfMany { pings: 2, missed: 1 };
        assert_eq!(says.judge(&[there], &two, true), Ok(()));
    }

    #[test]
    fn program_with_complaint_has_failed() {
        let says = Says::Words(&["return status 0"]);
        let good = [end("return status 0")];
        assert_eq!(says.judge(&good, &good, false), Ok(()));
        assert!(says.judge(&good, &[end("return status 28")], false).is_err());
        assert!(says.judge(&good, &[end("cmatose: event: X, error: 28\nreturn status 0")], false).is_err());
        assert!(says.judge(&good, &[Outcome { ok: false, ..end("return status 0") }], false).is_err());
    }

    #[test]
    fn program_with_complaint_did_not_merely_wait() {
        let killed = |output: &str| Outcome { ok: false, ..end(&format!("{output}{KILLED}")) };
        assert!(merely_waited(&end("")) && merely_waited(&killed("ping 3\n")));
        assert!(merely_waited(&killed("cq completion failed status 12\n")));
        assert!(!merely_waited(&killed("cq completion failed status 12\ndata mismatch\n")));
        assert!(!merely_waited(&Outcome { ok: false, ..end("[ended with 1]") }));
    }

    #[test]
    fn stream_prints_one_line() {
        const LINE: &str = "custom    4k      20      5       800k        0.37s      0.02    1839.96\n";
        let head = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n";
        assert_eq!(row(&end(&format!("{head}{LINE}")), "custom"), Ok(()));
        assert!(row(&end(head), "custom").is_err());
        assert!(row(&end(&LINE.repeat(2)), "custom").is_err());
        assert!(row(&end(LINE), "64_lat").is_err());
    }

    #[test]
    fn each_step_is_measured() {
        let table: String = STEPS.iter().map(|step| format!("{step:<13}:  0.45  0.13  6.00  22.25\n")).collect();
        assert_eq!(steps(&end(&table)), Ok(()));
        assert!(steps(&end(&table.replace("disconnect   :  0.45", "disconnect   :  0.00"))).is_err());
    }
}
