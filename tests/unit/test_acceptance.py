"""The acceptance of an emitted token from its two log-probabilities."""

import numpy as np

from specaudit.acceptance.scoring import acceptance


def test_a_token_is_accepted_with_the_ratio_of_its_probabilities_at_most_one():
    accept = acceptance(np.log([0.5, 0.2]), np.log([[0.25, 0.5], [0.4, 0.1]]))
    np.testing.assert_allclose(accept, [[0.5, 1.0], [1.0, 0.5]])


def test_without_draft_mass_nothing_is_accepted_even_where_the_target_has_none():
    """A near tie at temperature zero: the emitted token is not the argmax of the scoring pass, nor the draft's."""
    accept = acceptance(np.array([-np.inf, -np.inf, 0.0]), np.array([[-np.inf], [0.0], [-np.inf]]))
    assert accept.tolist() == [[0.0], [1.0], [0.0]]
