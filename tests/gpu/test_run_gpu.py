"""`softbench run` on a GPU: all backends and dimensions, faults of the GPU, and workers that share the memory in turn."""

import csv
import json

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(600)]

PLAIN = "cuda,triton,triton-row,triton-tile,compile,torch,naive"


def rows(cli):
    with (cli.folder / "results" / "latest.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_backend_is_measured_in_every_direction_and_dtype(cli):
    done = cli(
        *("run", "--backends", PLAIN, "--M", "512", "--N", "256,781,4096", "--quick"),  # other tests cover the backends of torch_library
        *("--dtype", "fp32,fp16,bf16", "--direction", "forward,backward,both"),
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(cli)
    assert {row["backend"] for row in found} == {*PLAIN.split(","), "copy"}
    assert {row["status"] for row in found} == {"ok"}
    assert {row["timer"] for row in found} == {"queued"}
    classes = {(row["backend"], row["dtype"] == "fp32", row["direction"]): row["class"] for row in found}
    assert all(grade == "pass" for (name, wide, _), grade in classes.items() if wide and name != "copy")
    assert classes["torch", False, "forward"] == classes["compile", True, "forward"] == "pass"
    assert classes["naive", False, "forward"] == classes["torch", False, "backward"] == "low-precision"
    for name in ("cuda", "triton", "triton-row", "triton-tile"):
        assert {grade for (backend, _, direction), grade in classes.items() if backend == name and direction != "both"} == {"pass"}


def test_two_processes_can_build_the_cuda_kernels_at_once(cli):
    cli.env["SOFTBENCH_CACHE"] = str(cli.folder / "cache")
    arguments = ("run", "--backends", "cuda", "--M", "64", "--N", "64", "--quick", "--output")
    both = [cli.start(*arguments, name) for name in ("one", "two")]
    for process in both:
        _, stderr = process.communicate(timeout=200)
        assert process.returncode == 0, stderr
    assert len(list((cli.folder / "cache").glob("*/softmax.so"))) == 1
    with (cli.folder / "one" / "latest.csv").open() as file:
        assert next(row for row in csv.DictReader(file) if row["backend"] == "cuda")["build_cache"] == "cold"


def test_the_run_document_records_the_gpu(cli):
    assert cli("run", "--backends", "torch", "--M", "64", "--N", "64", "--quick").returncode == 0
    environment = cli.document()["environment"]
    for key in ("gpu", "gpu_memory_bytes", "driver", "power_limit_w", "sm_clock_max_mhz", "cuda", "torch", "triton"):
        assert environment.get(key), key
    assert "GPU-" not in json.dumps(cli.document())


def test_a_gpu_fault_costs_only_its_own_cells(cli, plugins):
    given = ("--plugin", plugins / "faulty" / "gpu_faults.py", "--backends", "torch,poisons,spins,out-of-memory")
    done = cli("run", *given, "--M", "64", "--N", "64,128", "--quick", "--timeout", "import=60,build=10,check=60,time=60")
    assert done.returncode == 1, done.stderr
    found = {(row["backend"], row["N"]): row for row in rows(cli)}
    for N in ("64", "128"):
        assert found["copy", N]["status"] == found["torch", N]["status"] == "ok"
        assert found["poisons", N]["status"] == "failed"
        assert "assert" in found["poisons", N]["reason"] or "CUDA error" in found["poisons", N]["reason"]
        assert found["spins", N]["status"] == "timeout"
        assert found["out-of-memory", N]["status"] == "oom"
        assert "it asked for" in found["out-of-memory", N]["reason"]


def test_workers_share_a_small_memory_and_stay_interleaved(cli):
    import torch

    share = 20 * 2**30 / torch.cuda.mem_get_info()[0]
    (cli.folder / "tight.toml").write_text(f"memory_share = {share:.4f}\nrounds = 2\n[[sweep]]\nM = 16384\nN = 16384\n")
    asked = ("run", "--config", "tight.toml", "--backends", "torch,naive,triton")
    assert "takes turns" in cli(*asked, "--dry-run").stdout
    done = cli(*asked)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not interleaved" not in done.stderr
    assert {row["rounds"] for row in rows(cli)} == {"2"}


def test_doctor_and_list_show_the_gpu(cli):
    assert "cuda:0" in cli("doctor").stdout
    assert cli("list").returncode == 0
    done = cli("run", "--device", "cuda:64", "--M", "8", "--N", "8")
    assert done.returncode == 2
    assert "no such GPU; there are cuda:0" in done.stderr


def test_kernels_are_right_over_every_dimension(cli):
    done = cli(
        *("run", "--backends", "torch,naive,triton,cuda", "--shape", "6x40x33x129", "--dim", "0,1,2,3"),
        *("--dtype", "fp32,bf16", "--direction", "forward,backward,both", "--quick"),
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(cli)
    assert len(found) == 5 * 4 * 2 * 3
    assert {row["status"] for row in found} == {"ok"}
    assert {row["class"] for row in found if row["backend"] in ("triton", "cuda")} == {"pass"}


def test_attention_shapes_are_measured_in_bulk(cli):
    """Some rows of so many are compared, over a dimension whose rows are no view of a matrix too."""
    done = cli(
        *("run", "--backends", "torch,triton,cuda", "--shape", "8x16x1024x1024", "--dim", "-1,1", "--dtype", "bf16"),
        *("--op", "softmax", "--direction", "forward,backward", "--quick"),
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {(row["backend"], row["direction"], row["shape"]): row for row in rows(cli)}
    assert {row["status"] for row in found.values()} == {"ok"}
    assert {row["kernels"] for (name, _, shape), row in found.items() if name in ("triton", "cuda") and "@" not in shape} == {"1"}
