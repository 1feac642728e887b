"""Says from a main thread's frames where a rank's own code stands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fabwatch.watchdog.evidence.observations import Frame, ThreadStack

COLLECTIVES = frozenset(
    {
        "all_reduce",
        "all_reduce_coalesced",
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_out",
        "all_gather_single",
        "all_gather_object",
        "all_gather_tensor",
        "_all_gather_base",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "monitored_barrier",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced",
        "_reduce_scatter_base",
        "scatter",
        "scatter_object_list",
        "wait_tensor",
        "all_reduce_multigpu",
        "_sync_params_and_buffers",
        "_broadcast_coalesced",
        "_verify_param_shape_across_processes",
    }
)
P2P = frozenset(
    {"send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"}
)

_DISTRIBUTED = re.compile(
    r"torch/distributed/(distributed_c10d|_functional_collectives|utils|nn/functional)\b"
)
_TORCH = re.compile(r"(^|/)(torch|torchvision|torchaudio|triton|functorch)/")
_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages|lib/python3\.\d+|python3\.\d+)/|^<frozen")
_NATIVE = re.compile(r"\.so[.\d]*$|\.dylib$|^\[|^lib[^/]*\.so|\.(c|cc|cpp|cu|h|hpp)$")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A stage and how one frame shows it. ``file`` and ``function`` must both match, if given."""

    stage: str
    function: str = ""
    file: str = ""
    not_file: str = ""
    user_only: bool = False


def _p(stage: str, function: str = "", file: str = "", **more: object) -> Pattern:
    return Pattern(stage, function, file, **more)  # type: ignore[arg-type]


_LOADERS = (
    r"torch/utils/data/|(^|/)(webdataset|torchdata|ffcv|streaming|datasets|squirrel|petastorm)/"
    r"|nvidia/dali|(^|/)data_?loader[^/]*\.py$"
)
_STORES = (
    r"(^|/)(s3fs|fsspec|boto3|botocore|s3transfer|gcsfs|adlfs|aiobotocore|smart_open|urllib3"
    r"|requests|h5py|zarr|pyarrow|lmdb)/|google/cloud/storage|(^|/)(http/client|ssl|socket)\.py$"
)
PATTERNS: tuple[Pattern, ...] = (
    _p(
        "teardown",
        r"^(destroy_process_group|_abort_process_group|_shutdown|_exit_function"
        r"|_run_finalizers|run_exitfuncs|_python_exit)$",
    ),
    _p("teardown", r"^(Py_FinalizeEx|Py_Finalize|finalize_interp\w*|atexit_callfuncs)"),
    _p("teardown", r"^shutdown$", r"torch/distributed/|concurrent/futures/"),
    _p(
        "init",
        r"^(init_process_group|rendezvous|_new_process_group_helper|new_group"
        r"|_new_group_with_tag|new_subgroups\w*|init_device_mesh|_store_based_barrier"
        r"|_create_c10d_store|_env_rendezvous_handler|split_group|initialize_model_parallel)$",
    ),
    _p("init", "", r"torch/distributed/(rendezvous|elastic/rendezvous)"),
    _p("init", r"^(c10d::TCPStore::|ncclCommInit\w*|bootstrapInit)"),
    _p(
        "checkpoint",
        r"^(save|_save|_legacy_save|load|_load|_legacy_load|write_record|persistent_id)$",
        r"torch/serialization\.py$",
    ),
    _p("checkpoint", "", r"torch/distributed/checkpoint/|(^|/)safetensors/|(^|/)orbax/"),
    _p(
        "checkpoint",
        r"(?i)(save|write|store|load|restore|read|dump|upload|export)_*(the_)?"
        r"(\w*_)?(checkpoint|ckpt|snapshot|state_dict|states?|model|weights)"
        r"|(checkpoint|ckpt|snapshot)_*(save|write|store|load|restore|upload)|^_?save_pretrained$",
        "",
        not_file=r"torch/utils/checkpoint\.py$|torch/nn/|torch/optim/",
    ),
    _p("dataloader", "", _LOADERS),
    _p(
        "dataloader",
        r"(?i)data_?loader|(next|get|fetch|load|read|make|prepare|produce)_*"
        r"(\w*_)?(batch(es)?|samples?|examples?)$|^collate|^prefetch|^batch_(iter|generator)",
        "",
        user_only=True,
    ),
    _p("dataloader", r"^__next__$", "", user_only=True),
    _p(
        "compile",
        "",
        r"torch/_dynamo/(convert_frame|symbolic_convert|output_graph|bytecode\w*"
        r"|variables/|guards|repro/|backends/)",
    ),
    _p(
        "compile",
        "",
        r"torch/_inductor/(compile_fx\w*|graph|codecache|scheduler|async_compile"
        r"|compile_worker/|codegen/|select_algorithm|ir|lowering|autotune_process|fx_passes/)",
    ),
    _p(
        "compile",
        "",
        r"torch/_functorch/(aot_autograd|partitioners|_aot_autograd/"
        r"(graph_compile|graph_capture|dispatch_and_compile_graph|jit_compile\w*))",
    ),
    _p("compile", "", r"(^|/)triton/(compiler|backends|runtime/(jit|autotuner|build))"),
    _p(
        "compile",
        r"^(_jit_compile|_write_ninja_file\w*|_run_ninja_build|load_inline)$",
        r"cpp_extension\.py$",
    ),
    _p(
        "evaluation",
        r"(?i)^_*((run|do|maybe)_+)?(eval|evaluate\w*|evaluation\w*|eval_\w+"
        r"|validat(e|ion)\w*|val_(step|epoch|loop|batch\w*)|test_(step|epoch|loop))$"
        r"|(?i:_(eval|evaluate|evaluation|validate|validation)(_(loop|step|epoch|model))?$)",
        "",
        not_file=r"(^|/)torch/(nn|_dynamo|_inductor|fx|jit|distributed)/",
    ),
    _p("evaluation", "", r"(?i)(^|/)(evaluation_loop|evaluator|validation_loop)\.py$"),
    _p(
        "device-sync",
        r"^(synchronize|wait|query|wait_stream|wait_event)$",
        r"torch/(cuda|xpu|hip|mps|accelerator)/",
    ),
    _p(
        "device-sync",
        r"^(cudaDeviceSynchronize|cudaStreamSynchronize|cudaEventSynchronize"
        r"|cuCtxSynchronize\w*|cuStreamSynchronize\w*|cuEventSynchronize\w*"
        r"|c10::cuda::device_synchronize|at::native::_local_scalar_dense_cuda.*"
        r"|hipDeviceSynchronize|hipStreamSynchronize)",
    ),
    _p(
        "sleep",
        r"^(sleep|time_sleep|pysleep|(__)?clock_nanosleep\w*|(__)?nanosleep\w*|usleep"
        r"|time\.sleep|wait_a_while|backoff\w*|do_sleep|_sleep)",
    ),
    _p("sleep", r"^(sleep|_sleep)$", r"(^|/)(asyncio|tenacity|backoff)/"),
    _p("io", "", _STORES),
    _p(
        "io",
        r"^(fsync|fdatasync|(__)?(lib?c_)?(read|write|pread|pwrite|open|close|fsync)(64|v)?"
        r"|os_(fsync|read|write)\w*|_io_\w*(read|write|flush)\w*|fread|fwrite|copyfileobj\w*"
        r"|copyfile|read_(text|bytes)|write_(text|bytes))$",
    ),
    _p(
        "lock",
        r"^(acquire|wait|join|_wait_for_tstate_lock|wait_for|get|put|__enter__|result|poll"
        r"|select|_poll|_recv|recv|recv_bytes|_recv_bytes|communicate|_try_wait|_wait|flock|lockf)$",
        r"(^|/)(threading|queue|subprocess|selectors)\.py$|multiprocessing/|concurrent/futures/"
        r"|(^|/)filelock/|asyncio/",
    ),
    _p(
        "lock",
        r"^(PyThread_acquire_lock\w*|sem_(timed)?wait\w*|(__)?new_sem_wait\w*"
        r"|pthread_(mutex_lock|cond_\w*wait)\w*|lock_PyThread_acquire_lock|take_gil)",
    ),
)
_COMPILED = tuple(
    (
        p,
        re.compile(p.function) if p.function else None,
        re.compile(p.file) if p.file else None,
        re.compile(p.not_file) if p.not_file else None,
    )
    for p in PATTERNS
)

ORDER = (
    "p2p",
    "collective",
    "teardown",
    "checkpoint",
    "dataloader",
    "compile",
    "evaluation",
    "init",
    "device-sync",
    "io",
    "lock",
    "sleep",
    "user-code",
)
"""Which stage names a rank when its stack shows several, first one first."""

_AROUND_DEVICE = frozenset({"dataloader", "checkpoint", "evaluation", "compile"})

WAITING = frozenset({"p2p", "collective", "device-sync", "init"})
"""Stages in which a rank may be somebody else's victim."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where one stack stands: every stage seen, the one that names it, and its place.

    ``frame`` is the innermost frame of the user's own code, else the innermost one of all.
    ``op`` is the collective or p2p function. ``locals`` are those of that function's frame.
    ``around``: stages that a wait for the device stands in. Copying a batch to a GPU that hangs is
    not a stall of the data loader.
    """

    names: frozenset[str]
    primary: str
    frame: Frame | None
    op: str = ""
    locals: tuple[tuple[str, str], ...] = ()
    around: frozenset[str] = frozenset()


def is_stdlib(frame: Frame) -> bool:
    """Whether a frame is the standard library's (py-spy shortens those to ``queue.py``)."""
    file = frame.file
    if file.startswith("<frozen"):
        return True
    if re.search(r"(^|/)lib/python3\.\d+/(?!site-packages|dist-packages)", file):
        return True
    top = file.split("/", 1)[0].removesuffix(".py")
    if "/" in file:
        return top in {
            "asyncio",
            "concurrent",
            "multiprocessing",
            "importlib",
            "json",
            "logging",
            "http",
            "urllib",
            "email",
            "collections",
            "unittest",
            "ctypes",
            "encodings",
            "xml",
        }
    return top in sys.stdlib_module_names


def is_user(frame: Frame) -> bool:
    """Whether a frame is neither torch's, nor a library's, nor the standard library's."""
    file = frame.file
    if not file or file.startswith("<") or _TORCH.search(file) or _LIBRARY.search(file):
        return False
    return not (_NATIVE.search(file) or is_stdlib(frame) or re.search(_LOADERS, file))


def bare(frame: Frame) -> str:
    """A Python method's own name: since Python 3.11 stacks say ``Popen.wait`` for ``wait``."""
    name = frame.function
    return name if "::" in name or "(" in name else name.rpartition(".")[2] or name


def _of(frame: Frame) -> Iterable[str]:
    if _DISTRIBUTED.search(frame.file):
        if bare(frame) in P2P:
            yield "p2p"
        elif bare(frame) in COLLECTIVES:
            yield "collective"
    user = is_user(frame)
    spellings = {frame.function, bare(frame)}
    for pattern, function, file, not_file in _COMPILED:
        if pattern.user_only and not user:
            continue
        if function is not None and not any(map(function.search, spellings)):
            continue
        if file is not None and not file.search(frame.file):
            continue
        if not_file is not None and not_file.search(frame.file):
            continue
        yield pattern.stage


def classify(frames: Sequence[Frame]) -> Stage:
    """The stage of a stack, innermost frame first."""
    names: set[str] = set()
    outer: set[str] = set()  # of what stood around a wait for the device
    op = ""
    values: tuple[tuple[str, str], ...] = ()
    for position, frame in enumerate(frames):
        for name in _of(frame):
            if name in ("io", "sleep", "lock") and position > 8 and not is_user(frame):
                continue
            if "device-sync" in names and name in _AROUND_DEVICE:
                outer.add(name)
                continue
            names.add(name)
            if name in ("p2p", "collective") and not op:
                op, values = bare(frame), frame.locals
    if {"p2p", "collective"} <= names:
        names.discard("collective" if op in P2P else "p2p")
    # What the job's own code calls of the standard library is where that code stands.
    outside = next((frame for frame in frames if not is_stdlib(frame)), None)
    if outside is not None and is_user(outside):
        names.add("user-code")
    primary = next((name for name in ORDER if name in names), "")
    mine = next((f for f in frames if is_user(f)), frames[0] if frames else None)
    return Stage(frozenset(names), primary, mine, op, values, frozenset(outer))


def of_thread(thread: ThreadStack | None) -> Stage:
    """The stage of one thread."""
    return classify(thread.frames if thread is not None else ())
