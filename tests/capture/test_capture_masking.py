"""Secrets never reach the disk; what a diagnosis needs does."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabwatch.watchdog.capture.masking import mask_environment, mask_text, secret_name
from fabwatch.watchdog.collectors import environment
from fabwatch.watchdog.evidence.ledger import Status

NAMES = [
    "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN",
    "MLFLOW_TRACKING_PASSWORD", "DB_PASSWD", "OPENAI_API_KEY", "GITHUB_TOKEN", "NGC_API_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_CLIENT_SECRET", "GOOGLE_APPLICATION_CREDENTIALS",
    "SLACK_WEBHOOK_URL", "COMET_API_KEY", "MY_PRIVATE_KEY", "SENTRY_DSN", "apiKey", "clientSecret",
    "PGPASSWORD", "DOCKER_AUTH", "KUBE_BEARER", "VAULT_TOKEN_2",
]  # fmt: skip
PUBLIC = [
    "PATH", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "TORCH_FR_BUFFER_SIZE", "RANK", "PWD", "OLDPWD",
    "TOKENIZERS_PARALLELISM", "MONKEY", "KEYBOARD", "AWS_REGION", "MASTER_ADDR", "PYTHONPATH",
    "SSH_AUTH_SOCK", "CUDA_VISIBLE_DEVICES", "FI_PROVIDER", "PASSENGERS", "AUTHOR",
]  # fmt: skip
# Letters that no mask and no quoting changes, long enough not to occur elsewhere.
secrets = st.text(string.ascii_letters + string.digits + "+/_.~$%^*", min_size=12, max_size=60).map(
    lambda text: "Zq" + text
)
names = st.sampled_from(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_these_names_hold_secrets(name: str) -> None:
    assert secret_name(name.encode())


@pytest.mark.parametrize("name", PUBLIC)
def test_these_names_hold_none(name: str) -> None:
    assert not secret_name(name.encode())


@given(names, secrets, st.lists(st.sampled_from(PUBLIC), max_size=3))
def test_an_environment_is_masked_and_the_rest_is_kept(
    name: str, secret: str, others: list[str]
) -> None:
    block = b"\0".join([f"{n}=value-{n}".encode() for n in others] + [f"{name}={secret}".encode()])
    items, count = mask_environment(block + b"\0")
    assert count == 1
    assert not any(secret.encode() in item for item in items)
    assert items[-1] == f"{name}=****".encode()
    assert items[:-1] == [f"{n}=value-{n}".encode() for n in others]


@given(
    names,
    secrets,
    st.sampled_from(
        [
            "python train.py --{option} {secret} --lr 0.1",
            "python train.py --{option}={secret}",
            "2026-11-30 INFO exporting {name}={secret} for workers",
            'config: {{"lr": 0.1, "{name}": "{secret}", "seed": 1}}',
            "{name}: '{secret}'",
            "clone https://bot:{secret}@git.example/repo.git failed",
            "s3 url s3://AKID:{secret}@bucket/prefix",
            "curl -H 'Authorization: Bearer {secret}' https://x",
            "-----BEGIN RSA PRIVATE KEY-----\n{secret}\n-----END RSA PRIVATE KEY-----",
        ]
    ),
)
def test_text_is_masked(name: str, secret: str, shape: str) -> None:
    if "://" in shape:
        secret = secret.replace("/", "x")
    option = name.lower().replace("_", "-")
    text = shape.format(name=name, option=option, secret=secret)
    masked, count = mask_text(text.encode())
    assert count >= 1
    assert secret.encode() not in masked
    assert mask_text(masked)[0] == masked, "masking again changes nothing"


@pytest.mark.parametrize(
    "line",
    [
        b"[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        b"timeout: WorkNCCL(SeqNum=39, OpType=ALLREDUCE, Timeout(ms)=600000)",
        b"setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        b"store by key '0', but store->get('0') got error: timeout",
        b"DistStoreError: wait timeout after 2000ms, keys: /k",
        b"num_tokens=8192 max_tokens: 4096 tokens_per_s=123.5",
        b'Thread 14753 (idle): "MainThread"\n    all_reduce (torch/distributed/d.py:3252)',
        b"loading https://host:8080/path?x=1 and file:///tmp/x",
        b"std::exception at pass::run(Key: none)",
    ],
)
def test_what_a_diagnosis_reads_is_left_alone(line: bytes) -> None:
    assert mask_text(line) == (line, 0)


@given(st.binary(max_size=400))
def test_any_bytes_can_be_masked(data: bytes) -> None:
    mask_text(data)
    mask_environment(data)


def test_the_ledger_says_how_many_were_masked(stage: Any) -> None:
    stage.start(WANDB_API_KEY="0123456789abcdef")
    (only,) = environment.collect(stage.target(), stage.incident / "ranks/0")
    text = only.path.read_text()
    assert only.status is Status.OK
    assert "HF_TOKEN=****\n" in text and "WANDB_API_KEY=****\n" in text
    assert "RANK=0\n" in text
    assert int(only.reason.split()[0]) >= 2 and only.reason.endswith("secrets masked")
