"""The theory lab: what gradient flow does to products of weights, predicted and simulated side by side.

Everything is in float64 torch tensors. Integration and optimization are scipy's: `pip install 'rankwise[theory]'`.
"""

from rankwise.theory.algorithm import greedy as greedy
from rankwise.theory.assumptions import Check as Check
from rankwise.theory.assumptions import StageCheck as StageCheck
from rankwise.theory.assumptions import check as check
from rankwise.theory.comparison import Comparison as Comparison
from rankwise.theory.comparison import compare as compare
from rankwise.theory.coordinates import Coordinate as Coordinate
from rankwise.theory.coordinates import Pairing as Pairing
from rankwise.theory.descent import Descent as Descent
from rankwise.theory.descent import descend as descend
from rankwise.theory.gradient_flow import Flow as Flow
from rankwise.theory.gradient_flow import FlowState as FlowState
from rankwise.theory.gradient_flow import flow as flow
from rankwise.theory.gradient_flow import sweep as sweep
from rankwise.theory.low_rank import RankPath as RankPath
from rankwise.theory.low_rank import RankStage as RankStage
from rankwise.theory.low_rank import greedy_low_rank as greedy_low_rank
from rankwise.theory.path import Ending as Ending
from rankwise.theory.path import Path as Path
from rankwise.theory.path import Plateau as Plateau
from rankwise.theory.path import Stage as Stage
from rankwise.theory.problem import NotFinite as NotFinite
from rankwise.theory.problem import Problem as Problem
from rankwise.theory.problems.attention_head import attention_head as attention_head
from rankwise.theory.problems.attention_head import attention_output as attention_output
from rankwise.theory.problems.linear import basis_pursuit as basis_pursuit
from rankwise.theory.problems.linear import diagonal_linear as diagonal_linear
from rankwise.theory.problems.linear import regression as regression
from rankwise.theory.problems.modules import Diagonal as Diagonal
from rankwise.theory.problems.modules import DiagonalPair as DiagonalPair
from rankwise.theory.problems.modules import from_module as from_module
from rankwise.theory.problems.modules import products_of as products_of
from rankwise.theory.problems.transformer import DiagonalTransformer as DiagonalTransformer
from rankwise.theory.problems.transformer import diagonal_transformer as diagonal_transformer
