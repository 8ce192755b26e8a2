"""The pytest plugin as another project's tests meet it: each run in a process of its own."""

import json

import pytest

from specaudit.models.loading import ZOO

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(not (ZOO / "tiny").is_dir(), reason=f"the bundled models are not in {ZOO / 'tiny'}")

# -p beside the entry point, where the package is installed: the one must not register the other again.
ARGV = ("-p", "specaudit.pytest_plugin", "-p", "no:cacheprovider", "-W", "error", "-q")

DECODERS = """
import pytest


@pytest.fixture(scope="session")
def pair():
    from specaudit.acceptance.pair import load_pair

    return load_pair("zoo:tiny", "zoo:tiny")


@pytest.fixture(scope="session")
def decode_all(pair):
    from specaudit.core.types import Limits
    from specaudit.decode import decode
    from specaudit.models.target import ModelTarget
    from specaudit.verify import lossless_verifier

    def decode_all(prompts, sampling):
        rule, limits = lossless_verifier(sampling), Limits(16, pair.target.end_ids)
        return decode(ModelTarget(pair.target), pair.drafter, rule, prompts, sampling, limits, k=2).transcripts

    return decode_all


@pytest.fixture(scope="session")
def decoder(decode_all):
    return lambda prompt_ids, sampling: decode_all([prompt_ids], sampling)[0].output_ids


@pytest.fixture
def replay(decode_all):
    # A decoder that hands out, in turn, what one batch gave: far quicker than a prompt at a time.

    def serve(prompts, sampling):
        outputs = iter(decode_all(prompts, sampling))

        def decoder(prompt_ids, sampling):
            transcript = next(outputs)
            assert transcript.prompt_ids == tuple(prompt_ids)
            return transcript.output_ids

        return decoder

    return serve
"""

AUDITS = """
from pathlib import Path

import pytest

from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams
from specaudit.pytest_plugin import assert_lossless

PROMPTS = [[5, 6, 7], [9], [300, 20]]


def test_lossless(lossless_audit, replay):
    decoder = replay(PROMPTS * 8, SamplingParams(temperature=0.8))
    result = lossless_audit(decoder, "zoo:tiny", "zoo:tiny", prompts=PROMPTS)
    assert result["verdict"] == "no_violation_found"
    assert 220 <= result["tokens"] < 236
    assert result["false_alarm_rate"] == 0.002


def test_lossy(lossless_audit, replay):
    decoder = replay(PROMPTS * 8, SamplingParams(temperature=0.2))
    lossless_audit(decoder, "zoo:tiny", "zoo:tiny", prompts=PROMPTS)


def test_too_few(lossless_audit, decoder):
    lossless_audit(decoder, "zoo:tiny", "zoo:tiny", tokens=10, false_alarm_rate=0.01)


def test_greedy(lossless_audit, decoder, pair):
    calls = []

    def lossy(prompt_ids, sampling):
        calls.append((prompt_ids, sampling))
        return [*decoder(prompt_ids, sampling)[:-1], 0]

    greedy = SamplingParams(temperature=0, seed=5)
    with pytest.raises(pytest.fail.Exception, match="violated(.|\\n)*greedy(.|\\n)*e-value: none"):
        lossless_audit(lossy, pair.target, prompts=PROMPTS, sampling=greedy, tokens=40)
    assert [ids for ids, _ in calls] == [PROMPTS[i % 3] for i in range(len(calls))]
    assert [sampling.seed for _, sampling in calls] == list(range(5, 5 + len(calls)))


def test_transcripts(decode_all, pair):
    from specaudit.engines.transcripts import write

    made = decode_all(PROMPTS * 8, SamplingParams(temperature=0.8))
    write(Path("made.jsonl"), made)
    results = [
        assert_lossless(source, pair.target, "zoo:tiny", tokens=250) for source in (made, "made.jsonl")
    ]
    assert results[0] == results[1]
    assert 250 <= results[0]["tokens"] < 266


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (lambda *_: [], {}, "decoder = .*returned no token for prompt 0; return the output's ids"),
        (lambda *_: [1], {"prompts": []}, "prompts = .*must hold a prompt"),
        (lambda *_: [1], {"tokens": 0}, "tokens = 0: must be a whole number, 1 or more"),
        (lambda *_: [1], {"false_alarm_rate": 0.6}, "false_alarm_rate = 0.6: must be above 0 and at most 0.5"),
        ([], {"prompts": PROMPTS}, "prompts = .*: transcripts have their own; leave it out"),
        ([], {}, "transcripts = 0: hold no output token"),
        ("nowhere.jsonl", {}, "transcripts_or_decoder = nowhere.jsonl: cannot be read"),
    ],
)
def test_unusable(lossless_audit, pair, source, options, said):
    with pytest.raises(InputError, match=said):
        lossless_audit(source, pair.target, **options)
"""


def test_audits_in_a_project_of_somebody_else(pytester):
    pytester.makeconftest(DECODERS)
    pytester.makepyfile(AUDITS)
    done = pytester.runpytest_subprocess(
        *ARGV, "--specaudit-tokens", "220", "--specaudit-false-alarm-rate", "0.002", "--tb=short"
    )
    done.assert_outcomes(passed=10, failed=2)
    done.stdout.fnmatch_lines(
        [
            "*_ test_lossy _*",
            "violated: the output is not the target's own distribution (2?? tokens at a false-alarm rate of 0.002)",
            "  cause: sharper: the output is more, or less, concentrated than the target's distribution",
            "  e-value: 10^*",
            "  flagged: *contamination_sharper*",
            "  detectable contamination: 0.*",
            "*_ test_too_few _*",
            "inconclusive: the audit cannot tell whether the output is the target's own (1? tokens *rate of 0.01)",
            "  because: too few tokens*",
            "  detectable contamination: none*",
            "  not a pass: audit more tokens (--specaudit-tokens), or remove the reason",
        ]
    )
    # The message is all there is to say: no traceback through the plugin.
    assert "pytest_plugin.py" not in done.stdout.str()


RERUNS = """
from _pytest.runner import runtestprotocol


def pytest_runtest_protocol(item, nextitem):
    for _ in range(2):
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            item.ihook.pytest_runtest_logreport(report=report)
    return True
"""

LIGHT = """
import json
import sys

import pytest

VERDICTS = iter(["violated", "no_violation_found"])


@pytest.fixture
def stub(monkeypatch):
    def audit(source, target, draft=None, **options):
        if next(VERDICTS) == "violated":
            pytest.fail("violated: once")

    monkeypatch.setattr("specaudit.pytest_plugin.assert_lossless", audit)


def test_audit(stub, lossless_audit):
    lossless_audit([], "zoo:tiny")
"""


def test_a_failed_audit_is_not_run_again(pytester):
    pytester.makeconftest(RERUNS)
    pytester.makepyfile(LIGHT)
    done = pytester.runpytest_subprocess(*ARGV)
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["*violated: once", "*from the first run of this test: an audit is not run again*"])


COLLECTED = """
import json
import sys


def pytest_collection_finish(session):
    heavy = {"torch", "transformers", "scipy", "pandas", "datasets"} & sys.modules.keys()
    loaded = {"plugin": "specaudit.pytest_plugin" in sys.modules, "heavy": sorted(heavy)}
    with open("loaded.json", "w") as stream:
        json.dump({**loaded, "tests": len(session.items)}, stream)
"""


def test_nothing_heavy_is_loaded_until_an_audit_begins(pytester):
    """After collection, of tests that ask for the fixture; and where one gets it and does not call it."""
    pytester.makeconftest(COLLECTED)
    pytester.makepyfile(
        "import sys\n"
        "def test_unused(lossless_audit):\n"
        "    assert callable(lossless_audit)\n"
        "    assert not {'torch', 'transformers', 'scipy'} & sys.modules.keys()\n"
    )
    pytester.runpytest_subprocess(*ARGV).assert_outcomes(passed=1)
    assert json.loads((pytester.path / "loaded.json").read_text()) == {"plugin": True, "heavy": [], "tests": 1}


def test_options(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    done = pytester.runpytest_subprocess(*ARGV, "--help")
    done.stdout.fnmatch_lines(
        ["audits of decoders (specaudit):", "*--specaudit-tokens=N*", "*--specaudit-false-*RATE*"]
    )
    for option, value, said in (
        ("--specaudit-tokens", "0", "must be a whole number, 1 or more (received '0')"),
        ("--specaudit-false-alarm-rate", "0.7", "must be above 0 and at most 0.5 (received '0.7')"),
    ):
        done = pytester.runpytest_subprocess(*ARGV, option, value)
        assert done.ret == pytest.ExitCode.USAGE_ERROR
        assert said in done.stderr.str()


def test_the_entry_point_and_the_option_p_are_one_registration(pytester):
    """As if installed: the entry point of this name is what `-p` looks for, and it is not registered again."""
    info = pytester.mkdir("specaudit_installed-0.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specaudit-installed\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[pytest11]\nspecaudit.pytest_plugin = specaudit.pytest_plugin\n")
    pytester.syspathinsert()
    pytester.makepyfile("def test_once(lossless_audit): pass")
    pytester.runpytest_subprocess(*ARGV).assert_outcomes(passed=1)
    pytester.runpytest_subprocess(*ARGV[2:]).assert_outcomes(passed=1)
