"""Before any data is touched: the best use of a privacy budget and a round budget. Never imports torch."""

from alidpfl.planner.optimise import Setting, best_of, pareto_front
from alidpfl.planner.plan import Plan, PolicyPlan, make_plan
from alidpfl.planner.requirements import MODEL_SIZES, Wishes

__all__ = ["MODEL_SIZES", "Plan", "PolicyPlan", "Setting", "Wishes", "best_of", "make_plan", "pareto_front"]
