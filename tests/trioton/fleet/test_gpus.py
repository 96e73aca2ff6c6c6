"""GPUs that are split between replicas: who gets which, and what is said where there are too few."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing

from trioton.flags.fields import UsageError
from trioton.fleet.checks import check_settings
from trioton.fleet.driver import CannotStart
from trioton.fleet.fleet import ray_options
from trioton.fleet.gpus import GpuShares, NoGpus, gpus_per_replica, visible_gpus
from trioton.fleet.local_driver import LocalDriver
from trioton.fleet.words import ServerWords, fleet_words


@pytest.mark.parametrize("text", ["1", "2", "8", "0.5", "0.25", "0.333", "0.1"])
def test_values_that_divide_gpus(text: str) -> None:
    assert gpus_per_replica(text) == float(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "0.4", "0.75", "nan", "inf", "two", "", "1e9"])
def test_values_that_do_not(text: str) -> None:
    with pytest.raises(ValueError, match="expected a whole number"):
        gpus_per_replica(text)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("0,1", ("0", "1")),
        (" 3 , GPU-ab ", ("3", "GPU-ab")),
        ("", ()),
        ("-1", ()),
        ("1,-1,2", ("1",)),
        ("1,,2", ("1",)),
    ],
)
def test_what_is_visible_is_what_cuda_is_told(given: str, found: tuple[str, ...]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": given}) == found


def test_each_replica_has_gpus_of_its_own_which_come_back() -> None:
    shares = GpuShares(["4", "5", "6", "7", "8"], 2)
    assert shares.most_replicas == 2
    assert [shares.take("a"), shares.take("b")] == ["4,5", "6,7"]
    with pytest.raises(NoGpus, match=r"no GPU is free for it: 2 replicas have 2 GPUs each of 5 \(4, 5, 6, 7, 8\)"):
        shares.take("c")
    shares.give_back("a")
    shares.give_back("a")
    assert shares.take("c") == "4,5"


def test_shares_of_gpus_are_spread() -> None:
    shares = GpuShares(["0", "1"], 0.5)
    assert shares.most_replicas == 4
    assert [shares.take(name) for name in "abcd"] == ["0", "1", "0", "1"]
    with pytest.raises(NoGpus, match="4 replicas have 1/2 of a GPU each"):
        shares.take("e")
    shares.give_back("b")
    assert shares.take("e") == "1"


@pytest.mark.parametrize("seed", range(5))
def test_at_random_no_gpu_has_more_than_its_part(seed: int) -> None:
    rng = random.Random(seed)
    per_replica = rng.choice([1, 2, 3, 0.5, 1 / 3])
    shares = GpuShares([*map(str, range(rng.randrange(1, 9)))], per_replica)
    held: dict[str, list[str]] = {}
    for number in range(300):
        if held and rng.random() < 0.4:
            name = rng.choice([*held])
            shares.give_back(name)
            del held[name]
            continue
        if len(held) < shares.most_replicas:
            held[str(number)] = shares.take(str(number)).split(",")
        else:
            with pytest.raises(NoGpus):
                shares.take(str(number))
        used = Counter(gpu for each in held.values() for gpu in each)
        assert max(used.values(), default=0) <= (1 if per_replica >= 1 else round(1 / per_replica))
        assert all(len(set(each)) == len(each) for each in held.values())


def test_too_few_are_named() -> None:
    GpuShares(["0", "1"], 1).check(2)
    with pytest.raises(
        NoGpus,
        match=r"^3 replicas with one GPU each need more GPUs than there are, expected 3 at least, got 2 \(0, 1\)$",
    ):
        GpuShares(["0", "1"], 1).check(3)
    with pytest.raises(NoGpus, match=r"5 replicas with 1/2 of a GPU each .* expected 3 at least, got none$"):
        GpuShares([], 0.5).check(5)


async def test_a_process_sees_its_gpus_and_gives_them_back_at_its_end() -> None:
    show = (sys.executable, "-c", "import os, sys; sys.exit(int(os.environ['CUDA_VISIBLE_DEVICES']))")
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            driver = LocalDriver(nursery, {}, gpus=GpuShares(["7"], 1))
            for name in ("a", "b"):
                running = await driver.start(name, ServerWords((), command=show))
                if name == "a":
                    with pytest.raises(
                        CannotStart, match=r"no GPU is free for it: 1 replicas have one GPU each of 1 \(7\)"
                    ):
                        await driver.start("c", ServerWords((), command=show))
                assert await running.wait() == "exit code 7"
                await trio.testing.wait_all_tasks_blocked()
            assert await (await driver.start("e", ServerWords((), command=show))).wait() == "exit code 7"


def test_on_ray_they_are_the_actors_option(tmp_path: Path) -> None:
    flags, words = fleet_words([str(tmp_path), "--driver=ray", "--gpus-per-replica=0.5"], {})
    assert ray_options(flags) == {"num_gpus": 0.5}
    flags, _ = fleet_words(["m", "--driver=ray", "--gpus-per-replica=1", '--ray-options={"num_gpus": 2}'], {})
    with pytest.raises(UsageError, match="--gpus-per-replica and num_gpus of --ray-options say the same"):
        check_settings(words.settings({}), flags)
