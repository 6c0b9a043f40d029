"""A Dask cluster over TLS: who has a certificate of its authority gets in, and others get one line that says why."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from systolic.cli import main
from systolic.tuning import Certificates, ClusterError, cluster

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates by openssl's command")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, and a certificate of each."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    fresh = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    for authority, name in (("ours", "me"), ("others", "stranger")):
        openssl(
            *(*fresh, "-x509", "-nodes", "-days", "2", "-subj", f"/CN={authority}"),
            *("-keyout", f"{authority}.key", "-out", f"{authority}.pem"),
        )
        openssl(*fresh, "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            *("x509", "-req", "-days", "2", "-in", f"{name}.csr", "-out", f"{name}.pem"),
            *("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial"),
        )
    openssl("ec", "-in", "me.key", "-out", "locked.key", "-aes128", "-passout", "pass:secret")
    (folder / "empty.pem").touch()
    return folder


def certificates(files: Path, authority: str, name: str, key: str = "") -> Certificates:
    return Certificates(
        authority=files / f"{authority}.pem", certificate=files / f"{name}.pem", key=files / f"{key or name}.key"
    )


@pytest.fixture(scope="module")
def scheduler(files: Path) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    ours = {
        f"tls_{role}_{what}": str(files / f"me.{end}")
        for role in ("client", "scheduler", "worker")
        for what, end in (("cert", "pem"), ("key", "key"))
    }
    security = distributed.Security(require_encryption=True, tls_ca_file=str(files / "ours.pem"), **ours)
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        dashboard_address=None,
        silence_logs=50,
        security=security,
        protocol="tls://",
        host="127.0.0.1",
    ) as made:
        yield made


@needs_openssl
def test_who_has_a_certificate_gets_in(files: Path, scheduler: Any) -> None:
    address = scheduler.scheduler_address
    assert address.startswith("tls://")
    with cluster(address, certificates(files, "ours", "me")) as (_, at_once):
        assert at_once == 2
    # Without ours, what Dask's own configuration names.
    from dask import config

    named = {"ca-file": "ours.pem", "client.cert": "me.pem", "client.key": "me.key"}
    settings = {f"distributed.comm.tls.{name}": str(files / file) for name, file in named.items()}
    with config.set(settings), cluster(address) as (_, at_once):
        assert at_once == 2


@needs_openssl
@pytest.mark.parametrize(
    ("authority", "name"),
    [("ours", "stranger"), ("others", "stranger"), ("others", "me")],
)
def test_who_has_none_of_that_authority_does_not(files: Path, scheduler: Any, authority: str, name: str) -> None:
    with (
        pytest.raises(ClusterError, match=r"no Dask scheduler answers at tls://.*certificate of this authority"),
        cluster(scheduler.scheduler_address, certificates(files, authority, name)),
    ):
        pass


@needs_openssl
def test_without_encryption_nobody_gets_in(scheduler: Any) -> None:
    with (
        pytest.raises(ClusterError, match="no Dask scheduler"),
        cluster(scheduler.scheduler_address.replace("tls://", "tcp://")),
    ):
        pass


@needs_openssl
@pytest.mark.parametrize(
    ("address", "authority", "name", "key", "said"),
    [
        ("tls://127.0.0.1:1", "gone", "me", "me", "cannot read .*gone.pem: No such file"),
        ("tls://127.0.0.1:1", "ours", "me", "gone", "cannot read .*gone.key: No such file"),
        ("tls://127.0.0.1:1", "empty", "me", "me", "empty.pem holds no certificate"),
        ("tls://127.0.0.1:1", "ours", "me", "stranger", "me.pem and .*stranger.key are not a certificate and its key"),
        ("tls://127.0.0.1:1", "ours", "me", "locked", "or the key has a passphrase"),
        ("tcp://127.0.0.1:1", "ours", "me", "me", "certificates go with an address such as tls://"),
    ],
)
def test_files_that_do_not_fit_are_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    files: Path,
    address: str,
    authority: str,
    name: str,
    key: str,
    said: str,
) -> None:
    with pytest.raises(ClusterError, match=said), cluster(address, certificates(files, authority, name, key)):
        pass
    monkeypatch.setattr("systolic.cli.tune.check_available", lambda: None)
    monkeypatch.setenv("SYSTOLIC_TLS_CA", str(files / f"{authority}.pem"))
    options = ["--tls-cert", str(files / f"{name}.pem"), "--tls-key", str(files / f"{key}.key")]
    store = ["--store", str(tmp_path / "trials.sqlite")]
    assert main(["tune", "512,512,512", *store, "--scheduler", address, *options]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert main(["tune", "512,512,512", *store, "--scheduler", address, *options[:2]]) == 2
    assert "go together" in capsys.readouterr().err


def test_tls_without_certificates_says_how_to_give_them() -> None:
    with pytest.raises(ClusterError, match="give --tls-ca, --tls-cert and --tls-key"), cluster("tls://127.0.0.1:1"):
        pass
