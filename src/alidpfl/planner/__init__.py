"""Planning before any data is read: the best use of a privacy budget and a round budget. Never imports torch."""

from alidpfl.planner.optimise import Setting, choose_setting
from alidpfl.planner.plan import Plan, make_plan, weak_signal
from alidpfl.planner.request import MODEL_SIZES, PlanRequest, affordable_rounds

__all__ = ["MODEL_SIZES", "Plan", "PlanRequest", "Setting", "affordable_rounds", "choose_setting", "make_plan"]
__all__ += ["weak_signal"]
