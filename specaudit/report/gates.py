"""The gates: what must hold before speculative decoding is switched on, each judged from a report's own numbers.

A gate passes (True), fails (False) or is undecided (None), and its text says what to do when it does not pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specaudit.report.policy import Policy
from specaudit.report.wording import beside, bounds, finite, number, plain

Section = Mapping[str, Any]
Gate = dict[str, Any]


def gates(report: Mapping[str, Any], policy: Policy) -> list[Gate]:
    """All gates in order.

    Parameters
    ----------
    report : mapping
        The sections ``lossless``, ``cost`` and ``speedup`` of report.json.
    policy : Policy
        The thresholds.

    Returns
    -------
    list of dict
        ``gate``, ``passed``, ``value``, ``threshold`` and ``text``. ``prediction_error`` is there only where the best k
        was measured.
    """
    lossless, speedup = report["lossless"], report["speedup"]
    found = [
        _lossless(lossless, policy),
        _audit_power(lossless, policy),
        _same_machine(report["cost"].get("machine_differences"), policy),
        _speedup(speedup, policy.minimum_speedup),
        _probability_slower(speedup["probability_slower"], policy.maximum_probability_slower),
    ]
    if speedup.get("measured") is not None:
        found.append(_prediction_error(speedup, policy.maximum_relative_error))
    return found


def _gate(name: str, passed: bool | None, value: Any, threshold: Any, text: str) -> Gate:
    return {"gate": name, "passed": passed, "value": value, "threshold": threshold, "text": text}


def _lossless(section: Section, policy: Policy) -> Gate:
    passed, text = _losslessness(section)
    if not policy.require_lossless:
        lossy = ", with a verifier that does not preserve the target" if section["preserves_target"] is False else ""
        declared = section.get("declares_lossy")
        also = f", and the drafter's configuration declares {declared}" if declared else ""
        text = f"Waived by require_lossless = false; the audit's verdict is {section['verdict']!r}{lossy}{also}."
        passed = True
    return _gate("lossless", passed, section["verdict"], "no_violation_found", text)


def _losslessness(section: Section) -> tuple[bool | None, str]:
    tokens, alarm = number(section["tokens"]), plain(number(section["false_alarm_rate"]))
    if section["verdict"] == "violated":
        evidence = f"log10 of the e-value is {number(section['log10_e'])} over {tokens} tokens"
        return False, (
            f"The output is not the target's own distribution ({evidence}, at a false-alarm rate of {alarm}"
            f"{_cause(section['cause'])}), so correct the decoder and audit again before it is switched on."
        )
    if section["preserves_target"] is False:
        return False, (
            f"The verifier does not preserve the target, whatever an audit of {tokens} tokens finds, so use one that "
            "does, or set require_lossless = false if a changed distribution is acceptable."
        )
    if section["verdict"] == "inconclusive":
        return None, (
            f"The audit of {tokens} tokens is inconclusive at a false-alarm rate of {alarm}{_cause(section['cause'])}, "
            "so audit more tokens with the draft switched on, or lower the scorer's noise with a wider dtype."
        )
    # A report of before this field was written has none.
    if section.get("declares_lossy"):
        return None, (
            f"No violation was found in {tokens} tokens, but the drafter's configuration declares "
            f"{section['declares_lossy']}, and a server that honours this changes the output, so set the fields to "
            "their lossless values and audit again, or set require_lossless = false if a changed distribution is "
            "acceptable."
        )
    return True, f"No violation was found in {tokens} tokens at a false-alarm rate of {alarm}."


def _cause(cause: Mapping[str, Any] | None) -> str:
    if not cause:
        return ""
    described = f": {str(cause['text']).rstrip('. ')}" if cause.get("text") else ""
    return f", most like {cause.get('name')}{described}"


def _audit_power(section: Section, policy: Policy) -> Gate:
    smallest, tokens = section["detectable_contamination"], section["tokens"]
    most, fewest = policy.maximum_detectable_contamination, policy.minimum_tokens
    enough = finite(smallest) and smallest <= most and tokens >= fewest
    passed: bool | None = True if enough else None
    if not policy.require_lossless:
        passed, text = True, "Waived by require_lossless = false, since nothing then rests on the audit."
    elif section["verdict"] == "violated":
        passed, text = True, f"The {number(tokens)} tokens audited were enough to find a violation."
    elif enough:
        text = (
            f"A contamination of {_share(smallest, most)} would have been found in the {number(tokens)} tokens "
            f"audited, within the {_limit(most)} allowed."
        )
    else:
        found = _share(smallest, most) if finite(smallest) else "an unknown share"
        text = (
            f"The smallest contamination that {number(tokens)} tokens could have shown is {found}, and the policy asks "
            f"for at most {_limit(most)} from at least {number(fewest)} tokens, so audit more tokens."
        )
    value = {"detectable_contamination": smallest, "tokens": tokens}
    return _gate("audit_power", passed, value, {"detectable_contamination": most, "tokens": fewest}, text)


def _same_machine(differences: list[str] | None, policy: Policy) -> Gate:
    passed: bool | None = None
    if differences == []:
        passed, text = True, "The costs were measured on a machine like this one."
    elif not policy.require_same_machine:
        passed, text = True, "Waived by require_same_machine = false; the costs come from another machine."
    else:
        which = f" (it differs in {', '.join(differences)})" if differences else ", or the costs do not say which"
        text = (
            f"The costs come from another machine{which}, so run specaudit measure here, or set "
            "require_same_machine = false if that machine is the one that will serve."
        )
    return _gate("same_machine", passed, differences, [], text)


def _speedup(section: Section, minimum: float) -> Gate:
    ends, measured_ends = bounds(section["interval"]), bounds(section["measured_interval"])
    required = f"the {minimum:.12g}x required"
    passed: bool | None = None
    if measured_ends and measured_ends[1] < minimum:
        passed, outcome = False, f"what was measured lies below {required}, so leave speculative decoding off"
    elif not ends:
        outcome = "the prediction has no interval, so profile more prompts and predict again"
    elif ends[0] >= minimum:
        passed, outcome = True, f"the predicted interval reaches {required}"
    elif ends[1] < minimum:
        passed, outcome = False, f"what is predicted lies below {required}, so leave it off or try a cheaper draft"
    else:
        outcome = f"the predicted interval spans {required}, so profile more prompts or repeat the cost measurement"
    return _gate("speedup", passed, section["predicted"], minimum, f"{_speedup_claim(section, minimum)}; {outcome}.")


def _speedup_claim(section: Section, minimum: float) -> str:
    claim = f"At k = {section['k']} and batch {section['batch']} the predicted speedup is"
    for key, joint in (("predicted", ""), ("measured", " and the measured one")):
        if section[key] is not None or key == "predicted":
            ends = bounds(section["interval" if key == "predicted" else "measured_interval"])
            interval = f" ({beside(ends[0], minimum)}x to {beside(ends[1], minimum)}x)" if ends else ""
            claim += f"{joint} {number(section[key])}x{interval}"
    return claim


def _probability_slower(value: float | None, most: float) -> Gate:
    if not finite(value):
        text = (
            "The probability of being slower than the baseline is unknown, so profile more prompts and predict again."
        )
        return _gate("probability_slower", None, None, most, text)
    claim = f"The probability of being slower than the baseline is {_share(value, most)}"
    if value <= most:
        return _gate("probability_slower", True, value, most, f"{claim}, within the {_limit(most)} allowed.")
    if value > 0.5:
        text = f"{claim}, more likely than not, so leave speculative decoding off or try a cheaper draft."
        return _gate("probability_slower", False, value, most, text)
    text = f"{claim}, above the {_limit(most)} allowed, so profile more prompts or repeat the cost measurement."
    return _gate("probability_slower", None, value, most, text)


def _prediction_error(section: Section, most: float) -> Gate:
    error = section["relative_error"]
    if not finite(error):
        text = "The measured speedup has no relative error beside it, so run specaudit bench with this prediction."
        return _gate("prediction_error", None, None, most, text)
    claim = (
        f"The predicted speedup of {number(section['predicted'])}x is {_share(abs(error), most)} away from the "
        f"measured {number(section['measured'])}x"
    )
    if abs(error) <= most:
        return _gate("prediction_error", True, abs(error), most, f"{claim}, within the {_limit(most)} allowed.")
    text = f"{claim}, above the {_limit(most)} allowed, so measure the costs and bench again with nothing else running."
    return _gate("prediction_error", None, abs(error), most, text)


def _share(value: float, most: float) -> str:
    return f"{plain(beside(100 * value, 100 * most))}%"


def _limit(most: float) -> str:
    return f"{100 * most:.12g}%"
