"""Models that ship with alidpfl. Any `torch.nn.Module` that `dpsgd` accepts serves as well."""

from alidpfl.models.by_name import ModelName, make_model
from alidpfl.models.cnn import compact_cnn, paper_cnn
from alidpfl.models.linear import linear, mlp

__all__ = ["ModelName", "compact_cnn", "linear", "make_model", "mlp", "paper_cnn"]
