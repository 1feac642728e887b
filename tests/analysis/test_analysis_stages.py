"""Where a stack stands."""

from __future__ import annotations

import pytest

from fabwatch.signatures.analysis.stages import classify, is_stdlib, is_user
from fabwatch.watchdog.evidence.observations import Frame

C10D = "torch/distributed/distributed_c10d.py"


def stack(*pairs):
    return [Frame(function, file, 1) for function, file in pairs]


@pytest.mark.parametrize(
    "frames, primary, also",
    [
        ([("all_reduce", C10D), ("wrapper", "torch/distributed/c10d_logger.py")], "collective", ()),
        ([("recv", C10D)], "p2p", ()),
        ([("barrier", C10D), ("evaluate", "train.py")], "collective", ("evaluation",)),
        ([("new_group", C10D)], "init", ()),
        ([("destroy_process_group", C10D), ("main", "train.py")], "teardown", ()),
        ([("synchronize", "torch/cuda/__init__.py"), ("step", "train.py")], "device-sync", ()),
        ([("wait", "threading.py"), ("get", "queue.py"), ("main", "train.py")], "lock", ()),
        (
            [("get", "queue.py"), ("_try_get_data", "torch/utils/data/dataloader.py")],
            "dataloader",
            ("lock",),
        ),
        ([("__iter__", "webdataset/tariterators.py")], "dataloader", ()),
        ([("run", "nvidia/dali/pipeline.py")], "dataloader", ()),
        ([("dataloader_next_batch", "train.py")], "dataloader", ()),
        ([("next_batch", "train.py")], "dataloader", ()),
        ([("__next__", "my/reader.py")], "dataloader", ()),
        ([("save", "torch/serialization.py"), ("main", "train.py")], "checkpoint", ()),
        ([("write_data", "torch/distributed/checkpoint/filesystem.py")], "checkpoint", ()),
        ([("save_file", "safetensors/torch.py")], "checkpoint", ()),
        ([("save_checkpoint", "train.py")], "checkpoint", ()),
        ([("validate", "train.py"), ("main", "train.py")], "evaluation", ()),
        ([("run_evaluation", "trainer.py")], "evaluation", ()),
        ([("compile_fx", "torch/_inductor/compile_fx.py")], "compile", ()),
        ([("make_ir", "triton/compiler/compiler.py")], "compile", ()),
        ([("read", "fsspec/spec.py"), ("x", "train.py")], "io", ()),
        ([("clock_nanosleep", "libc.so.6"), ("time_sleep", "libpython3.11.so")], "sleep", ()),
        ([("forward", "model.py")], "user-code", ()),
        ([], "", ()),
    ],
)
def test_a_stack_is_classified(frames, primary, also):
    stage = classify(stack(*frames))
    assert stage.primary == primary
    assert set(also) <= stage.names


@pytest.mark.parametrize(
    "frames, never",
    [
        ([("checkpoint", "torch/utils/checkpoint.py"), ("forward", "model.py")], "checkpoint"),
        ([("_fn", "torch/_dynamo/eval_frame.py"), ("step", "train.py")], "compile"),
        ([("_fn", "torch/_dynamo/eval_frame.py"), ("step", "train.py")], "evaluation"),
        ([("eval", "torch/nn/modules/module.py"), ("step", "train.py")], "evaluation"),
        ([("__next__", "tqdm/std.py"), ("step", "train.py")], "collective"),
        ([("all_reduce", "model.py")], "collective"),
        ([("retrieve_value", "train.py")], "evaluation"),
    ],
)
def test_look_alikes_are_left_alone(frames, never):
    assert never not in classify(stack(*frames)).names


def test_the_frame_shown_is_the_users_own():
    stage = classify(stack(("all_reduce", C10D), ("step", "/job/train.py"), ("main", "/job/x.py")))
    assert str(stage.frame) == "/job/train.py:1 step"
    assert stage.op == "all_reduce"


def test_user_code_is_told_from_libraries():
    assert is_user(Frame("step", "train.py", 1)) and is_user(Frame("step", "/job/train.py", 1))
    for file in (C10D, "queue.py", "/v/lib/python3.11/site-packages/x/y.py", "libc.so.6", ""):
        assert not is_user(Frame("f", file, 1)), file
    assert is_stdlib(Frame("f", "/usr/lib/python3.11/queue.py", 1))
    assert not is_stdlib(Frame("f", "/usr/lib/python3.11/site-packages/a.py", 1))


def test_a_method_is_known_by_its_own_name_as_newer_pythons_qualify_it():
    inner = [Frame("Popen._wait", "subprocess.py", 2046), Frame("run", "subprocess.py", 550)]
    stage = classify([*inner, Frame("Trainer.fetch", "/job/train.py", 19)])
    assert stage.primary == "lock" and "user-code" in stage.names
    assert str(stage.frame) == "/job/train.py:19 Trainer.fetch"
    plain = classify([Frame("_wait", "subprocess.py", 2046), Frame("fetch", "/job/train.py", 19)])
    assert plain.names == stage.names


def test_what_a_library_calls_of_the_standard_library_is_not_the_jobs_own_code():
    frames = [
        Frame("Condition.wait", "threading.py", 320),
        Frame("step", "/usr/lib/python3/dist-packages/deepspeed/engine.py", 9),
        Frame("main", "/job/train.py", 3),
    ]
    assert "user-code" not in classify(frames).names
