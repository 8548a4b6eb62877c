"""Models that ship with alidpfl. Any `torch.nn.Module` that `dpsgd` accepts serves as well."""

from alidpfl.models.paper_cnn import paper_cnn

__all__ = ["paper_cnn"]
