//! Checks the output of the stock programs of librdmacm, without I/O.

use crate::pair::{KILLED, Outcome, counter};
use crate::perftest;
use crate::report::last_lines;

/// Expected output of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// rping: server and client print each ping once, in order, and the client finds no wrong byte.
    Pings(usize),
    /// rping with one server for several clients: each client prints its pings, the server prints
    /// the end of each client.
    PingsOfMany {
        /// Number of pings of each client.
        pings: usize,
        /// Number of clients whose end the server may miss.
        missed: usize,
    },
    /// Server and client print all these words.
    Words(&'static [&'static str]),
    /// cmtime: the client prints the duration of each step.
    Steps,
    /// Programs of rsockets: each end that exits by itself prints one line of results, with this
    /// text in its first column.
    Row(&'static str),
    /// perftest: each end prints one line, for this number of iterations.
    Figures(u32),
    /// perftest that measures one-sided latencies: only the client prints a line, for this number
    /// of iterations.
    ClientFigures(u32),
}

/// The steps of cmtime.
const STEPS: [&str; 7] =
    ["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"];

/// Printed by a persistent rping server when a client leaves.
const CLIENT_LEFT: &str = "server DISCONNECT EVENT";

/// Words in lines that report an error.
const ERROR_WORDS: [&str; 6] = ["mismatch", "bogus", "error:", "Error", "failed", "failure"];

/// Reasons why perftest refuses to start.
const REFUSALS: [&str; 3] =
    ["UC is not supported in librdmacm", "XRC does not support RDMA_CM", "Address family for hostname not supported"];

/// Result of a check; the error describes the failure.
pub type CheckResult = Result<(), String>;

/// Returns true if a program exited with 0, or was killed at its time limit and reported no error
/// except a retry counter that was exceeded (status 12).
pub fn lacks_only_last_ack(end: &Outcome) -> bool {
    let unacknowledged = |line: &str| line.contains("status 12");
    (end.ok || end.output.ends_with(KILLED)) && error_lines(end).all(unacknowledged)
}

/// Returns the reason why perftest refused to start.
pub fn refusal(end: &Outcome) -> Option<&'static str> {
    REFUSALS.into_iter().find(|words| end.output.contains(words))
}

impl Expected {
    /// Checks that servers and clients exited with 0 and printed the expected output. A server that
    /// `stays` must have run until it was killed.
    pub fn judge(self, servers: &[Outcome], clients: &[Outcome], stays: bool) -> CheckResult {
        let ended_well = |end: &Outcome| if stays { end.output.ends_with(KILLED) } else { end.ok };
        let judge = || {
            let done = |end: &Outcome| end.ok || hit_rping_exit_race(end);
            if let ([server], [client]) = (servers, clients)
                && lost_last_ack(server, client)
            {
                return check_no_errors(client).and_then(|()| self.check_output(&[], clients, true));
            }
            let failed = servers.iter().find(|end| !ended_well(end)).or_else(|| clients.iter().find(|end| !done(end)));
            if let Some(end) = failed {
                return Err(format!("`{}` did not end well", end.command));
            }
            servers.iter().chain(clients).try_for_each(check_no_errors)?;
            self.check_output(servers, clients, stays)
        };
        judge().map_err(|why| servers.iter().chain(clients).fold(why, |text, end| text + "\n" + &excerpt(end)))
    }

    /// Returns true if a server that runs until it is killed has printed all expected lines about
    /// its clients.
    pub fn has_seen_all(self, output: &str, clients: usize) -> bool {
        match self {
            Self::PingsOfMany { .. } => output.matches(CLIENT_LEFT).count() >= clients,
            Self::Words(words) => words.iter().all(|words| output.contains(words)),
            _ => true,
        }
    }

    fn check_output(self, servers: &[Outcome], clients: &[Outcome], stays: bool) -> CheckResult {
        let mut all = servers.iter().chain(clients);
        // A server prints the rates that its client measured.
        let lacks_clock_rate = all.clone().any(|end| perftest::lacks_clock_rate(&end.output));
        match self {
            Self::Pings(count) => all.try_for_each(|end| check_pings(end, count)),
            Self::PingsOfMany { pings, missed } => {
                clients.iter().try_for_each(|end| check_pings(end, pings))?;
                servers.iter().try_for_each(|end| check_client_ends(end, clients.len(), missed))
            }
            Self::Words(words) => all.try_for_each(|end| check_words(end, words)),
            Self::Row(name) if stays => clients.iter().try_for_each(|end| check_row(end, name)),
            Self::Row(name) => all.try_for_each(|end| check_row(end, name)),
            Self::Steps => clients.iter().try_for_each(check_steps),
            Self::Figures(count) => all.try_for_each(|end| check_figures(end, count, lacks_clock_rate)),
            Self::ClientFigures(count) => {
                clients.iter().try_for_each(|end| check_figures(end, count, lacks_clock_rate))
            }
        }
    }
}

/// Returns true if the server of `ib_write_lat` failed only because the acknowledgement of its last
/// WRITE was lost. The client exits when it sees that WRITE in its memory, so it cannot acknowledge
/// a retransmission, and the server completes with status 12. As evidence, the client's counters
/// must show packets that its queue pair dropped because of its state.
fn lost_last_ack(server: &Outcome, client: &Outcome) -> bool {
    let all_but_one = |line: &str| {
        let counts = line.strip_prefix("scnt=").and_then(|counts| counts.split_once(", ccnt="));
        let counts = counts.and_then(|(sent, seen)| Some((sent.parse::<u64>().ok()?, seen.parse::<u64>().ok()?)));
        counts.is_some_and(|(sent, seen)| seen + 1 == sent)
    };
    server.command.starts_with("ib_write_lat ")
        && !server.ok
        && server.output.contains("Failed status 12")
        && error_lines(server).all(|line| line.trim() == "Test exited with Error")
        && server.output.lines().any(all_but_one)
        && client.ok
        && counter(&client.output, "bad_state") > 0
}

/// Returns true if an rping client failed only by a race of its own, fixed in rdma-core 59: its
/// event thread asks for another event after the main thread has destroyed the channel, and exits
/// with an error. Because both threads exit, roxe's counters may be missing from the output.
pub fn hit_rping_exit_race(end: &Outcome) -> bool {
    let mut lines = end.output.lines().rev();
    end.command.contains("rping -c")
        && lines.next() == Some("[ended with exit status: 255]")
        && lines.next().is_some_and(|line| line.starts_with("rdma_get_cm_event: "))
}

/// Returns the command and the end of its output. rping prints lines of 60,000 letters, so long
/// lines lose their middle.
fn excerpt(end: &Outcome) -> String {
    let lines: Vec<String> = last_lines(&end.output, 25).lines().map(shorten).collect();
    format!("$ {}\n{}", end.command, lines.join("\n"))
}

fn shorten(line: &str) -> String {
    const HALF: usize = 80;
    let letters: Vec<char> = line.chars().collect();
    if letters.len() <= 2 * HALF {
        return line.to_owned();
    }
    let part = |letters: &[char]| letters.iter().collect::<String>();
    format!("{} ... {}", part(&letters[..HALF]), part(&letters[letters.len() - HALF..]))
}

/// Returns the lines in which the program, not roxe, reports an error.
fn error_lines(end: &Outcome) -> impl Iterator<Item = &str> {
    let theirs = end.output.lines().filter(|line| !line.contains("roxe: ") && !line.contains("(process "));
    theirs.filter(|line| ERROR_WORDS.iter().any(|word| line.contains(word)))
}

fn check_no_errors(end: &Outcome) -> CheckResult {
    match error_lines(end).next() {
        Some(line) => Err(format!("`{}` prints: {line}", end.command)),
        None => Ok(()),
    }
}

fn check_words(end: &Outcome, words: &[&str]) -> CheckResult {
    match words.iter().find(|words| !end.output.contains(**words)) {
        Some(words) => Err(format!("`{}` does not print {words:?}", end.command)),
        None => Ok(()),
    }
}

/// Checks lines `ping data: rdma-ping-N: ABC...` with N = 0, 1, 2 and so on.
fn check_pings(end: &Outcome, count: usize) -> CheckResult {
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

/// Returns true if `line` is message `n` of rping: characters from `A` (65) to `z` (122), repeated,
/// starting one character later in each message.
fn is_ping(n: usize, line: &str) -> bool {
    let Some(letters) = line.strip_prefix(&format!("{n}: ")) else { return false };
    let first = 65 + n % 58;
    let expected = |place: usize| 65 + (first - 65 + place) % 58;
    !letters.is_empty() && letters.bytes().enumerate().all(|(place, letter)| usize::from(letter) == expected(place))
}

/// Checks that a persistent rping server printed the end of every client but `missed`. It is killed
/// before it writes the pings in its output buffer, so these are not checked.
fn check_client_ends(end: &Outcome, clients: usize, missed: usize) -> CheckResult {
    match end.output.matches(CLIENT_LEFT).count() {
        seen if seen <= clients && seen + missed >= clients => Ok(()),
        seen => Err(format!("`{}` saw {seen} of {clients} clients leave", end.command)),
    }
}

/// Checks that every step has a line such as `connect : 125.36 87.59 25869.00 6267.75` with a first
/// figure above 0.
fn check_steps(end: &Outcome) -> CheckResult {
    let measured = |step: &&&str| {
        let figures_of_step =
            |line: &str| line.split_once(':').filter(|(name, _)| name.trim() == **step).map(|(_, rest)| numbers(rest));
        end.output.lines().filter_map(figures_of_step).any(|figures| figures.len() == 4 && figures[0] > 0.0)
    };
    match STEPS.iter().find(|step| !measured(step)) {
        Some(step) => Err(format!("`{}` does not print the duration of {step:?}", end.command)),
        None => Ok(()),
    }
}

/// Checks that exactly one line looks like
/// `custom    4k      20      5       800k        0.37s      0.02    1839.96`.
fn check_row(end: &Outcome, name: &str) -> CheckResult {
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

fn check_figures(end: &Outcome, iterations: u32, lacks_clock_rate: bool) -> CheckResult {
    let rows = perftest::rows(&end.output);
    let is_measured = |row| lacks_clock_rate || perftest::is_measured(row, &end.output);
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
        let judge = |client| Expected::Figures(50).judge(std::slice::from_ref(&server), &[client], false);
        assert_eq!(judge(lacks), Ok(()));
        assert!(judge(end(zeros)).is_err());
    }

    #[test]
    fn pings_are_complete_and_in_order() {
        assert_eq!(check_pings(&end(PINGS), 2), Ok(()));
        assert!(check_pings(&end(PINGS), 3).is_err());
        assert!(check_pings(&end(&PINGS.replace("ping-1: B", "ping-1: C")), 2).is_err());
        assert!(check_pings(&end(&PINGS.replace("ping-1", "ping-2")), 2).is_err());
        assert!(check_pings(&end(&PINGS.replace("BCDEFG", "BCDEEG")), 2).is_err());
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
    fn server_that_stays_must_run_until_it_is_killed() {
        let client = end(PINGS);
        let left = "server DISCONNECT EVENT...\n";
        let killed = Outcome { ok: false, ..end(&format!("{left}{KILLED}")) };
        let expected = Expected::PingsOfMany { pings: 2, missed: 0 };
        assert_eq!(expected.judge(std::slice::from_ref(&killed), std::slice::from_ref(&client), true), Ok(()));
        assert!(expected.judge(&[end(left)], std::slice::from_ref(&client), true).is_err());
        let two = [client, end(PINGS)];
        assert!(expected.judge(std::slice::from_ref(&killed), &two, true).is_err());
        let expected = Expected::PingsOfMany { pings: 2, missed: 1 };
        assert_eq!(expected.judge(&[killed], &two, true), Ok(()));
    }

    #[test]
    fn program_that_reports_an_error_has_failed() {
        let expected = Expected::Words(&["return status 0"]);
        let good = [end("return status 0")];
        assert_eq!(expected.judge(&good, &good, false), Ok(()));
        assert!(expected.judge(&good, &[end("return status 28")], false).is_err());
        assert!(expected.judge(&good, &[end("cmatose: event: X, error: 28\nreturn status 0")], false).is_err());
        assert!(expected.judge(&good, &[Outcome { ok: false, ..end("return status 0") }], false).is_err());
    }

    #[test]
    fn program_with_another_error_lacks_more_than_last_ack() {
        let killed = |output: &str| Outcome { ok: false, ..end(&format!("{output}{KILLED}")) };
        assert!(lacks_only_last_ack(&end("")) && lacks_only_last_ack(&killed("ping 3\n")));
        assert!(lacks_only_last_ack(&killed("cq completion failed status 12\n")));
        assert!(!lacks_only_last_ack(&killed("cq completion failed status 12\ndata mismatch\n")));
        assert!(!lacks_only_last_ack(&Outcome { ok: false, ..end("[ended with 1]") }));
    }

    #[test]
    fn stream_prints_one_line() {
        const LINE: &str = "custom    4k      20      5       800k        0.37s      0.02    1839.96\n";
        let head = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n";
        assert_eq!(check_row(&end(&format!("{head}{LINE}")), "custom"), Ok(()));
        assert!(check_row(&end(head), "custom").is_err());
        assert!(check_row(&end(&LINE.repeat(2)), "custom").is_err());
        assert!(check_row(&end(LINE), "64_lat").is_err());
    }

    #[test]
    fn each_step_is_measured() {
        let table: String = STEPS.iter().map(|step| format!("{step:<13}:  0.45  0.13  6.00  22.25\n")).collect();
        assert_eq!(check_steps(&end(&table)), Ok(()));
        assert!(check_steps(&end(&table.replace("disconnect   :  0.45", "disconnect   :  0.00"))).is_err());
    }
}
