"""The command line: ``gradspec COMMAND``."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import IO, Any

import click

from gradspec import DTypeError, FormatWarning, UnsupportedError, __version__
from gradspec.system.terminal import printable, show_anywhere

_SHAPE = "A dynamic dimension of an ONNX model, N=8, or the shape of an input, x=8,3,32,32. [that of --input]"
_CONSTANT = "An array for an input that becomes a constant."
_INPUT = "An .npy file for each input, or an .npz file with several by name."


class _Refusal(click.ClickException):
    """What is wrong, on standard error as it is: click would write UTF-8 into a terminal that has none."""

    def show(self, file: IO[Any] | None = None) -> None:
        super().show(file or sys.stderr)


class _Misuse(_Refusal, click.UsageError):
    """The same, with the usage and the exit code 2."""


@contextmanager
def _said_plainly() -> Iterator[None]:
    """What is wrong with a file or a request, without a traceback; warnings, without a line of our source."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=FormatWarning)
        warnings.showwarning = lambda message, *where: click.echo(printable(f"Warning: {message}"), file=sys.stderr)
        try:
            yield
        except (OSError, ImportError, MemoryError, ValueError, DTypeError, UnsupportedError) as error:
            raise _Refusal(printable(str(error) or type(error).__name__)) from error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gradspec")
def main() -> None:
    """What convolution and pooling mean: values and both derivatives, over any scalar."""
    show_anywhere()


@main.command()
@click.option("--html", "page", type=click.Path(), metavar="PATH", help="Write one HTML page to this file instead.")
def demo(page: str | None) -> None:
    """Show what gradspec is, on small examples computed as you watch.

    Five screens: a specification read and run, a kernel judged, a network bounded and proved, an exact derivative, a
    model imported. It takes a few seconds, and needs no framework, except for the model, which is in ONNX. Every line
    after >>> can be typed into Python.
    """
    from pathlib import Path

    from gradspec.demo import html, show

    with _said_plainly():
        if page is None:
            show()
        else:
            Path(page).write_text(html(), encoding="utf-8")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def doctor(as_json: bool) -> None:
    """Say what is installed, which extras, devices, caches and limits there are, and what is missing.

    It compiles and runs one kernel. The exit code is 0 if gradspec works here, and 1 if something prevents it.
    """
    import json

    from gradspec.doctor import examine

    found = examine()
    for line in [json.dumps(found.as_json(), indent=1)] if as_json else found.lines():
        click.echo(printable(line), file=sys.stdout)
    raise SystemExit(1 if found.problems else 0)


@main.command("show")
@click.argument("file", type=click.Path())
@click.option("--shape", "shapes", multiple=True, metavar="NAME=SIZES", help=_SHAPE)
@click.option("--constant", "constants", multiple=True, metavar="[NAME=]FILE", help=_CONSTANT)
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help="Arrays that determine dynamic sizes.")
@click.option("--html", "page", type=click.Path(), help="Write the graph as a picture to this HTML file instead.")
def show_graph(
    file: str, shapes: tuple[str, ...], constants: tuple[str, ...], inputs: tuple[str, ...], page: str | None
) -> None:
    """Print a saved graph or an ONNX model: inputs, constants, operators with their attributes, types and outputs."""
    from pathlib import Path

    from gradspec.graph.picture import document
    from gradspec.interop.model_files import read_model

    with _said_plainly():
        graph = read_model(file, shapes, constants, inputs)
        if page is None:
            click.echo(str(graph), file=sys.stdout)
        else:
            Path(page).write_text(document(graph, Path(file).name), encoding="utf-8")


@main.command("run")
@click.argument("model", type=click.Path())
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help=_INPUT)
@click.option("--output", required=True, type=click.Path(), help="The .npy file, or .npz if there are several results.")
@click.option("--jvp", "tangents", multiple=True, metavar="[NAME=]FILE", help="Tangents of the inputs: forward mode.")
@click.option("--vjp", "cotangents", multiple=True, metavar="[NAME=]FILE", help="Cotangents of outputs: reverse mode.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=SIZES", help=_SHAPE)
@click.option("--constant", "constants", multiple=True, metavar="[NAME=]FILE", help=_CONSTANT)
@click.option("--threads", type=click.IntRange(1), help="[what this process may use]")
@click.option("--time", "timed", is_flag=True, help="Repeat the run for a second and report the median time.")
def run_model(
    model: str,
    inputs: tuple[str, ...],
    output: str,
    tangents: tuple[str, ...],
    cotangents: tuple[str, ...],
    shapes: tuple[str, ...],
    constants: tuple[str, ...],
    threads: int | None,
    timed: bool,
) -> None:
    """Run a saved graph or an ONNX model on arrays from files, or its derivative in either mode.

    MODEL is an ONNX model, gzipped or not, or a saved graph, whatever its name. Dynamic sizes are those of the arrays.
    Files without a name are assigned to the inputs in order.

    With --jvp the results are the outputs and their tangents (dNAME); inputs that are not named have tangent zero. With
    --vjp they are the outputs and the cotangents of all floating-point inputs (ct_NAME); the cotangents of outputs that
    are not named are zero.
    """
    from gradspec.interop.command import RunRequest, perform

    with _said_plainly():
        request = RunRequest(model, inputs, output, shapes, constants, tangents, cotangents, threads, timed)
        for line in perform(request):
            click.echo(printable(line), file=sys.stdout)


def _listed(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


@main.command()
@click.argument("suite", type=click.Choice(["pool", "conv", "net"]), default="pool")
@click.option(
    "--peers", callback=_listed, help="torch, jax, onnxruntime or a part of torch: torch-eager, ... [all installed]"
)
@click.option("--device", default="cpu", help="Where contenders run: cpu, cuda, or one GPU of several, cuda:1. [cpu]")
@click.option("--cells", callback=_listed, help="Cells of the grid: P1,P2 and so on; for GPUs P1-f16, last. [all]")
@click.option("--ops", callback=_listed, help="Pooling operators: max,avg,smooth. [all]")
@click.option("--modes", callback=_listed, help="forward,jvp,vjp: the value alone or with a derivative. [all]")
@click.option("--rounds", type=click.IntRange(1), help="Turns of every contender at every problem. [7]")
@click.option("--threads", type=click.IntRange(1), help="Threads for every contender. [what this process may use]")
@click.option("--timeout", type=click.FloatRange(1), help="Seconds after which a contender is abandoned. [180]")
@click.option("--quick", is_flag=True, help="Two short rounds, without torch-compile unless it is named.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write everything measured to this file.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False), help="Draw the result: .png, .pdf or .svg.")
@click.option("--compare", "earlier_file", type=click.Path(), help="Compare with the --json file of an earlier run.")
def bench(**options: Any) -> None:
    """Time the standard grid for gradspec and every installed peer, side by side.

    Each contender runs in its own process, which is stopped while another runs. They take turns on the same numbers,
    and their results are compared before anything is timed. Ctrl-C ends early and shows what was measured.
    """
    from gradspec.bench.command import BenchError as UserError
    from gradspec.bench.command import BenchRequest as Request
    from gradspec.bench.command import perform

    try:
        perform(Request(**options))
    except UserError as error:
        raise _Refusal(str(error)) from error


def _numbers(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    try:
        return None if value is None else [int(part) for part in value.split(",") if part.strip()]
    except ValueError:
        written = "ranks are numbers from 1 to 4; write 1,2" if parameter.name == "ranks" else "write 96,100"
        said = f"{value!r} is no list of {parameter.name}: {written}"
        raise click.BadParameter(said, context, parameter) from None


def _list_choices(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from gradspec.conformance.command import show_choices

        show_choices()
        context.exit()


@main.command()
@click.argument("target")
@click.option("--spec", help="What the kernel is judged by: module:reference or an ONNX file. [its operator]")
@click.option("--inputs", help='Types of arguments: "f32[8,64],f32[64]"; several lists with ; or module:draw. [its]')
@click.option("--params", type=click.Choice(["constants", "inputs"]), help="How a reference's parameters are treated.")
@click.option("--array", type=click.Choice(["numpy", "torch", "jax", "cupy"]), help="The arrays that the kernel takes.")
@click.option("--device", default="cpu", help="Where kernels run: cpu, cuda, or one GPU of several, cuda:1. [cpu]")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="End after so many seconds in total. [60]")
@click.option("--cases", type=click.IntRange(1), help="Judge so many cases, or fewer if --seconds are over.")
@click.option("--at-least", type=click.IntRange(0), help="Fail if fewer cases of a mode are judged.")
@click.option("--seed", type=click.IntRange(0), help="Draw the cases from this number. [a random one, printed]")
@click.option("--ops", callback=_listed, help="Operators: max_pool,conv and so on. [all]")
@click.option("--features", callback=_listed, help="Only cases with these features: ties,nan and so on.")
@click.option("--modes", callback=_listed, help="value,jvp,vjp,second. [all]")
@click.option("--dtypes", callback=_listed, help="f16,bf16,f32,f64,i8,u8,i32,i64. [all]")
@click.option("--ranks", callback=_numbers, help="Numbers of spatial axes: 1,2,3,4. [all]")
@click.option("--domain", help='What it is made for: "kernel_size=3x3 stride=2 channels=8..1024:8 batch=1". [its own]')
@click.option("--sizes", callback=_numbers, help="The kernel's block sizes, 96,100: try sizes around them too.")
@click.option("--allow", callback=_listed, help="Modes of reduced precision that the target documents: tf32,ftz, ...")
@click.option("--algorithm", help="How your kernel sums: fft, winograd, integral_image or prefix_sum. [term by term]")
@click.option("--jobs", type=click.IntRange(1), help="Processes. [one for each core, as far as GPUs have memory]")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=60.0, help="Seconds for one case. [60]")
@click.option("--sanitize", is_flag=True, help="Run what is found on a GPU under compute-sanitizer, and quote it.")
@click.option("--fail-fast", is_flag=True, help="End at the first case with a defect.")
@click.option("--strict", is_flag=True, help="Conventions that differ from ours fail too.")
@click.option(
    "--format", type=click.Choice(["text", "github"]), default="text", help="Print a page or an issue. [text]"
)
@click.option("--json", "json_file", type=click.Path(), help="Write everything found to this file.")
@click.option("--junit", "junit_file", type=click.Path(), help="Write JUnit XML: a test case per operator and mode.")
@click.option("--report", "html_file", type=click.Path(), help="Write one HTML page that shows every finding.")
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list_choices, help="Show all names and exit."
)
def check(
    target: str,
    strict: bool,
    format: str,
    json_file: str | None,
    junit_file: str | None,
    html_file: str | None,
    **options: Any,
) -> None:
    """Judge a target's convolution and pooling kernels: values, both derivatives, and what tests usually leave out.

    TARGET is native, torch, torch.compile, torch:channels_last, to_torch (our own operators on tensors, and so our
    kernels for GPUs), jax, onnxruntime, onnx.reference, or module or module:object for your own kernels, judged as
    operators by their names, or by any reference with --spec, such as gradspec.gallery:rms_norm; or bounds or
    auto_lirpa, which bound networks over boxes of inputs. Every case is judged against exact arithmetic; what fails is
    shrunk to its smallest case and printed as a program. A crash or a hang of the target is a finding. Ctrl-C ends
    early and shows what was found.

    The exit code is 0 if no defect was found, 1 if one was, 2 if the request is invalid or the target offers nothing of
    it, and 3 if the run is incomplete: interrupted, fewer cases than --at-least, or a mode or case was not judged.
    Conventions are not defects, unless --strict is given.
    """
    from gradspec.conformance.command import CheckError as UserError
    from gradspec.conformance.command import CheckRequest as Request
    from gradspec.conformance.command import perform
    from gradspec.verify.judge.run import perform_bounds

    given = {name: value for name, value in options.items() if value is not None}
    request = Request(target, given, json_file, junit_file, html_file, strict, format)
    try:
        code = perform_bounds(request) if target in ("bounds", "auto_lirpa") else perform(request)
    except UserError as error:
        raise _Misuse(str(error)) from error
    raise SystemExit(code)


@main.command()
@click.argument("model", type=click.Path())
@click.argument("property", type=click.Path(), required=False)
@click.option("--timeout", type=click.FloatRange(0), help="Seconds in all for one property. [60, or what a list says]")
@click.option("--kernels", type=click.Choice(["any", "real"]), default="any", help="What a proof holds for. [any]")
@click.option("--device", default="cpu", help="Where bounds are computed: cpu, cuda, or one GPU of several. [cpu]")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the search for counterexamples. [0]")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option("--report", type=click.Path(), help="Write one HTML page: margins, and what costs the most width.")
@click.option("--certificate", type=click.Path(), help="Save the proof to this file.")
@click.option(
    "--check", type=click.Path(), metavar="FILE", help="Check the proof in this file instead of looking for one."
)
@click.option("--jobs", type=click.IntRange(1), help="Properties verified in parallel. [the cores of this process]")
@click.option(
    "--output",
    type=click.Path(),
    help="Write the answer to this file as VNN-COMP wants it; of a list, append JSON lines, and skip those it has.",
)
def verify(**options: Any) -> None:
    """Prove that the network maps no input of a box into an unsafe set, or find one that it does.

    MODEL is an ONNX model, gzipped or not, or a saved graph; dynamic sizes are set to 1. PROPERTY
    is a VNN-LIB file. The first line printed is unsat (proved), sat (refuted, with a witness in the lines after it) or
    unknown. With --kernels any a proof holds for whatever conforming kernels compute, with real for the real numbers.
    The time limit includes reading and compiling; --report takes at most as long again.

    Instead of both, give a folder or a list network,property,seconds[,expected answer] in a .csv file: its properties
    are verified in parallel, and finished answers are kept.

    The exit code is 0 for an answer, including unknown; 1 if a file cannot be read, a certificate is refused or an
    answer contradicts the expected one; 2 if options are incompatible; 3 if the run is incomplete: interrupted, or a
    process died.
    """
    begun = monotonic()  # what follows takes seconds on a busy machine
    from gradspec.verify.command import MisuseError, VerifyRequest, perform

    with _said_plainly():
        try:
            code = perform(VerifyRequest(**options, begun=begun))
        except MisuseError as error:
            raise _Misuse(printable(str(error))) from error
    raise SystemExit(code)


@main.command("referee")
@click.argument("problem")
@click.argument("solution", required=False)
@click.option("--spec", help="With module:object as PROBLEM: the reference, module:object or an ONNX file.")
@click.option("--inputs", default="", help='Types, "f32[8,64],f32[64]"; for BackendBench also a file of traces.')
@click.option("--array", default="", help="The arrays that the kernel takes: numpy, torch or jax. [the reference's]")
@click.option("--device", default="cpu", help="Where kernels run: cpu, cuda, or one GPU of several, cuda:1. [cpu]")
@click.option("--cases", type=click.IntRange(1), default=40, help="Cases that each kernel is judged on. [40]")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=20.0, help="For judging one kernel. [20]")
@click.option("--seed", type=click.IntRange(0), help="Draw the cases from this number. [one that nobody knows]")
@click.option("--modes", callback=_listed, help="value,jvp,vjp,second. [value]")
@click.option("--allow", callback=_listed, help="Modes of reduced precision that kernels may use: tf32, ...")
@click.option("--own-work", help="Report library operators: any, no_reference, or operators not allowed: mm,conv.")
@click.option("--time", "timed", is_flag=True, help="Score speed, too, beside the reference, eager and compiled.")
@click.option("--rounds", type=click.IntRange(3), default=20, help="Timed calls of each. [20]")
@click.option("--sizes", default="", help='Types to time on, "f32[4096,4096]". [the first that are judged]')
@click.option("--fixed-sizes", is_flag=True, help="Judge on the problem's own sizes alone.")
@click.option("--cells", type=click.IntRange(1), help="The most cells of a problem; larger ones are made smaller.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=20.0, help="Seconds for one call. [20]")
@click.option("--jobs", type=click.IntRange(1), help="Solutions judged in parallel. [the cores of this process]")
@click.option("--output", type=click.Path(), help="Append scores to this file of JSON lines, and skip those it has.")
@click.option("--html", type=click.Path(), help="Write the table of scores as one HTML page.")
def referee_kernels(
    problem: str,
    solution: str | None,
    modes: list[str] | None,
    allow: list[str] | None,
    own_work: str | None,
    fixed_sizes: bool,
    cells: int | None,
    **options: Any,
) -> None:
    """Score kernels that may want to cheat: correct on cases that nobody knows, by whose work, and how fast.

    PROBLEM and SOLUTION are a problem of KernelBench (Model, get_inputs) and a file with ModelNew; a folder of GPU MODE
    (task.yml, reference.py) and a file with custom_kernel; a folder of BackendBench's operators alone; or module:object
    alone, with --spec and --inputs. A folder of solutions is scored as a whole, and so is a folder of KernelBench's
    problems with a folder of samples.

    The exit code is 0 if all passed, 1 if one failed, 2 if the request is invalid, and 3 if a problem could not be
    loaded, or something could not be judged.
    """
    from gradspec.referee.command import RefereeRequest, perform
    from gradspec.referee.own_work import Policy
    from gradspec.referee.scoring import ScoreSettings

    names = ("cases", "seconds", "seed", "device", "timeout", "timed", "rounds")
    chosen = {name: options.pop(name) for name in names}
    policy = None if own_work is None else Policy.of(own_work if own_work in Policy.NAMES else own_work.split(","))
    with _said_plainly():
        settings = ScoreSettings(**chosen, modes=tuple(modes or ("value",)), allow=tuple(allow or ()), own_work=policy)
        code = perform(RefereeRequest(problem, solution, settings, fixed=fixed_sizes, most_cells=cells, **options))
    raise SystemExit(code)
