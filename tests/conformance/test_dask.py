"""A campaign on a real ``dask.distributed`` cluster that loses a worker midway: every case once, as if nothing were."""

import os
import signal

import pytest

import gradspec as gs
from conformance import kernel_doubles

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")

POOLS = {"ops": ["max_pool"], "modes": ["value"], "dtypes": ["f32"], "ranks": [1, 2]}
CASES = 60


@pytest.fixture(scope="module")
def cluster():
    """Two processes on this machine; a nanny starts a worker again when it is gone."""
    quiet = {"distributed.worker.memory.terminate": False, "distributed.admin.log-length": 0}
    with (
        dask.config.set(quiet),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50, memory_limit=0
        ) as started,
    ):
        yield started


@pytest.mark.exhaustive  # other executors that lose what they are given: test_campaign.py
@pytest.mark.filterwarnings("default")  # of the cluster's own making
def test_a_worker_that_is_killed_midway_changes_nothing(cluster):
    killed = []

    def kill_a_worker(progress):
        if progress.stage == "judging" and progress.run.cases >= CASES // 5 and not killed:
            killed.append(next(iter(cluster.workers.values())).pid)
            os.kill(killed[0], signal.SIGKILL)

    options = {"cases": CASES, "seed": 4, **POOLS}
    with distributed.Client(cluster) as client:
        run = gs.conformance.check(
            "conformance.kernel_doubles:Wrong", executor=client.get_executor(), progress=kill_a_worker, **options
        )
    assert killed
    assert run.cases == CASES
    undisturbed = gs.conformance.check(kernel_doubles.Wrong, **options)
    assert run.tally == undisturbed.tally
    assert [(f.rule, f.count) for f in run.findings] == [(f.rule, f.count) for f in undisturbed.findings]
    assert run.errors == []


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("default")  # of the cluster's own making
def test_a_client_that_is_closed_midway_changes_nothing(cluster, capfd):
    closed = []

    def close_the_client(progress):
        if progress.stage == "judging" and progress.run.cases >= 4 and not closed:
            closed.append(client.close())

    options = {"cases": 16, "seed": 4, **POOLS}
    client = distributed.Client(cluster)
    run = gs.conformance.check(
        "conformance.kernel_doubles:Wrong", executor=client.get_executor(), progress=close_the_client, **options
    )
    assert closed
    assert run.tally == gs.conformance.check(kernel_doubles.Wrong, **options).tally
    assert run.errors == []
    assert "Traceback" not in capfd.readouterr().err
