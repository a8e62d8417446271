//! Many processes on one address; each opens the device and writes to another process.

use super::{REMOTE, Result, open, queue_pair};
use roxe::{Endpoint, RemoteAddr, WorkCompletion, WorkRequest};
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

struct Member {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Member {
    fn launch() -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg("member").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take().ok_or("no input")?, child.stdout.take().ok_or("no output")?);
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.output.next().ok_or("a process ended early")??)
    }

    /// Returns the bytes of memory of this process, shared pages divided by their number of users.
    fn memory(&self) -> Result<usize> {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id()))?;
        let kib = text.lines().find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse().ok());
        Ok(kib.unwrap_or(0_usize) << 10)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Fails only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts an even number of processes together, and lets each write to another one.
pub(crate) fn processes(count: usize) -> Result<()> {
    println!("{count} processes on one address, each of which writes to another one");
    let start = Instant::now();
    let mut all = (0..count).map(|_| Member::launch()).collect::<Result<Vec<_>>>()?;
    let lines = all.iter_mut().map(|member| Ok([member.line()?, member.line()?])).collect::<Result<Vec<_>>>()?;
    println!("  all have a queue pair after {:.1} s", start.elapsed().as_secs_f32());
    for (index, member) in all.iter_mut().enumerate() {
        let [endpoint, target] = lines.get(index ^ 1).ok_or("an odd number of processes")?;
        writeln!(member.input, "{endpoint}\n{target}")?;
    }
    let wait_for_all = |all: &mut [Member], what| -> Result<()> {
        all.iter_mut().try_for_each(|member| member.line().map(drop))?;
        println!("  all {what} after {:.1} s", start.elapsed().as_secs_f32());
        Ok(())
    };
    wait_for_all(&mut all, "have connected")?;
    all.iter_mut().try_for_each(|member| writeln!(member.input))?;
    wait_for_all(&mut all, "have written")?;
    let memory = all.iter().map(Member::memory).sum::<Result<usize>>()?;
    println!("  they take {:.1} MB each", memory as f64 / 1e6 / count as f64);
    Ok(())
}

/// Runs one of the processes: prints its address, reads that of its peer, writes once all have
/// connected, and ends once all have written.
pub(crate) fn member() -> Result<()> {
    let (_context, pd, cq) = open(0)?;
    let (region, qp) = (pd.alloc_mr(64, REMOTE)?, queue_pair(&pd, &cq)?);
    let print = |line: String| -> Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        Ok(out.flush()?)
    };
    print(format!("{}\n{}", qp.endpoint(), region.remote()))?;
    let mut lines = io::stdin().lock().lines();
    let mut next_line =
        || -> Result<String> { Ok(lines.next().ok_or("the other process has closed its end of the pipe")??) };
    let (peer, target): (Endpoint, RemoteAddr) = (next_line()?.parse()?, next_line()?.parse()?);
    qp.connect(&peer)?;
    print("connected".to_owned())?;
    next_line()?;
    qp.post_send(&WorkRequest::write(&[region.slice(..)?], target).signaled())?;
    let mut out = [WorkCompletion::default()];
    loop {
        if let [completion, ..] = cq.poll(&mut out)? {
            completion.check()?;
            break;
        }
    }
    print("written".to_owned())?;
    next_line().map(drop)
}
