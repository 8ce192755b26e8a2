"""Statistics of numbers alone: PIT, goodness of fit, two samples, e-processes, certificates, bootstrap, error budget.

Needs numpy and scipy only, and knows nothing of models or tokens' meaning. Tests come with what they can detect
(``detectable_*``) and what a wanted detection takes (``required_*``), both error rates named.
"""

from specaudit.stats.bootstrap import percentile_interval as percentile_interval
from specaudit.stats.bootstrap import ratio_bootstrap as ratio_bootstrap
from specaudit.stats.budget import holm as holm
from specaudit.stats.budget import split as split
from specaudit.stats.calibrator import calibrated_log_e as calibrated_log_e
from specaudit.stats.certificate import contamination_upper_bound as contamination_upper_bound
from specaudit.stats.eprocess import ContaminationEProcess as ContaminationEProcess
from specaudit.stats.eprocess import EProcess as EProcess
from specaudit.stats.eprocess import RunningMixture as RunningMixture
from specaudit.stats.eprocess import contamination_bets as contamination_bets
from specaudit.stats.eprocess import contamination_epsilons as contamination_epsilons
from specaudit.stats.eprocess import contamination_increments as contamination_increments
from specaudit.stats.eprocess import log_contamination_eprocess as log_contamination_eprocess
from specaudit.stats.eprocess import log_contamination_increments as log_contamination_increments
from specaudit.stats.eprocess import log_mean_exp as log_mean_exp
from specaudit.stats.eprocess_power import detectable_contamination as detectable_contamination
from specaudit.stats.eprocess_power import required_tokens_contamination as required_tokens_contamination
from specaudit.stats.excess import ExcessLaw as ExcessLaw
from specaudit.stats.excess import excess_law as excess_law
from specaudit.stats.gof import MINIMUM_PAIRS as MINIMUM_PAIRS
from specaudit.stats.gof import MINIMUM_PER_BIN as MINIMUM_PER_BIN
from specaudit.stats.gof import MINIMUM_TOKENS_CRAMER_VON_MISES as MINIMUM_TOKENS_CRAMER_VON_MISES
from specaudit.stats.gof import TestResult as TestResult
from specaudit.stats.gof import chi_square_uniform as chi_square_uniform
from specaudit.stats.gof import cramer_von_mises_uniform as cramer_von_mises_uniform
from specaudit.stats.gof import lag_test as lag_test
from specaudit.stats.gof_power import detectable_chi_square as detectable_chi_square
from specaudit.stats.gof_power import detectable_cramer_von_mises as detectable_cramer_von_mises
from specaudit.stats.gof_power import detectable_lag as detectable_lag
from specaudit.stats.gof_power import required_pairs_lag as required_pairs_lag
from specaudit.stats.gof_power import required_tokens_chi_square as required_tokens_chi_square
from specaudit.stats.gof_power import required_tokens_cramer_von_mises as required_tokens_cramer_von_mises
from specaudit.stats.group_test import MINIMUM_PER_GROUP as MINIMUM_PER_GROUP
from specaudit.stats.group_test import detectable_group_shift as detectable_group_shift
from specaudit.stats.group_test import group_test as group_test
from specaudit.stats.group_test import required_tokens_group_shift as required_tokens_group_shift
from specaudit.stats.law_eprocess import log_law_increments as log_law_increments
from specaudit.stats.pit import pit_values as pit_values
from specaudit.stats.repeats import REPEAT_NATS as REPEAT_NATS
from specaudit.stats.repeats import detectable_repeat as detectable_repeat
from specaudit.stats.repeats import most_outputs_repeat as most_outputs_repeat
from specaudit.stats.repeats import repeat_keys as repeat_keys
from specaudit.stats.repeats import repeated_output_test as repeated_output_test
from specaudit.stats.two_sample import detectable_exchange as detectable_exchange
from specaudit.stats.two_sample import exchange_tests as exchange_tests
from specaudit.stats.two_sample import required_pairs_exchange as required_pairs_exchange
from specaudit.stats.two_sample import smallest_exchange_p_value as smallest_exchange_p_value
from specaudit.stats.two_sample import token_counts as token_counts
