//! Measures middleware over roxe and over its own shared memory.

use crate::line::{Link, Unit};
use crate::work::{Sample, TIME_LIMIT, check_link, figure, port};
use roxe_tests::cc;
use roxe_tests::measure::pin::{self, End};
use roxe_tests::pair::{self, Launch, Program};
use roxe_tests::rdmacm::local;
use std::process;
use std::sync::OnceLock;

/// OpenMPI's launcher.
pub(crate) const MPIRUN: &str = "mpirun.openmpi";
/// OpenMPI's compiler.
pub(crate) const MPICC: &str = "mpicc.openmpi";
/// Options of [`MPIRUN`]: by default it refuses root and searches for cards itself.
const LAUNCHER: &str = "--allow-run-as-root --bind-to none --mca btl ^openib,ofi --mca pml ucx \
                        --mca pml_ucx_tls any --mca pml_ucx_devices any";

/// Measures messages between two MPI ranks, over roxe or over UCX's shared memory.
pub(crate) fn mpi(link: Option<Link>, [size, messages]: [u64; 2]) -> Result<Sample, String> {
    static BUILT: OnceLock<Result<String, String>> = OnceLock::new();
    let build = || cc::compile_shared(MPICC, &[], "mpi/bandwidth.c", &[]).map(|path| path.to_string_lossy().into());
    let program = BUILT.get_or_init(build).as_deref().map_err(Clone::clone)?;
    let rank = |end| [pin::prefix(end).join(" "), format!("{program} {size} {messages}")].join(" ");
    let args = format!("{MPIRUN} {LAUNCHER} -n 1 {} : -n 1 {}", rank(End::Client), rank(End::Server));
    let tls = if link.is_some() { "rc_v,self" } else { "posix,self" };
    let mut envs = link.map(Link::envs).unwrap_or_default();
    envs.push(("UCX_TLS".to_owned(), tls.to_owned()));
    let launch = Launch { without_roxe: link.is_none(), envs, calibrate_clock: true, ..Launch::default() };
    let outcome = pair::run_with(&Program::parse(&args), &launch, TIME_LIMIT).map_err(|e| e.to_string())?;
    if !outcome.ok {
        return Err(outcome.transcript());
    }
    let rate = figure(&outcome.output, size, Unit::MillionsPerSecond)?.figure;
    link.map_or(Ok(()), |link| check_link(link, &outcome.output))?;
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    Ok(Sample::from(rate * size as f64 / 1e3))
}

/// Number of WRITEs of [`fio`]. They must outweigh the half second before the first one, which fio
/// includes in its time.
const FIO_MESSAGES: u64 = 1 << 17;

/// Measures RDMA WRITEs of fio with 16 in flight.
pub(crate) fn fio(link: Link, size: u64) -> Result<Sample, String> {
    let port = port();
    let common = format!("fio --name=rdma --thread --ioengine=rdma --port={port} --iodepth=16 --bs={size}");
    let common = format!("{common} --size={}", size * FIO_MESSAGES);
    let at = |end| Launch { prefix: pin::prefix(end), envs: link.envs(), calibrate_clock: true, ..Launch::default() };
    let server = Program::parse(&format!("{common} --rw=read"));
    let client = Program::parse(&format!("{common} --rw=write --verb=write --hostname=127.0.0.1"));
    let programs = [(&server, &at(End::Server)), (&client, &at(End::Client))];
    let ready = || local::listens(process::id(), port);
    let ends = pair::run_pair_with(programs, &port.to_string(), ready, TIME_LIMIT).map_err(|e| e.to_string())?;
    let [server, client] = &ends;
    check_link(link, &client.output)?;
    // "  WRITE: bw=3559MiB/s (3732MB/s), ..."
    let rate = client.output.lines().find_map(|line| {
        let (_, rest) = line.trim_start().strip_prefix("WRITE: bw=")?.split_once('(')?;
        rest.split_once("MB/s")?.0.parse::<f64>().ok()
    });
    let good = rate.filter(|_| server.ok && client.ok);
    good.map(|rate| Sample::from(rate / 1e3)).ok_or_else(|| format!("{}\n{}", server.transcript(), client.transcript()))
}
