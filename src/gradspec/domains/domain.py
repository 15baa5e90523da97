"""A number system: how to bring ordinary numbers into it."""

from abc import ABC, abstractmethod

from gradspec.spec.scalar import Scalar
from gradspec.spec.tensor import Tensor, TensorLike, tensor


class Domain(ABC):
    """Scalars to run the specification on.

    ``scalar`` converts one number, ``tensor`` a nested list or an array of them; the specification then computes in the
    system its inputs belong to.
    """

    name: str

    @abstractmethod
    def scalar(self, value: Scalar) -> Scalar:
        """``value`` as a number of this system."""

    def tensor(self, data: TensorLike) -> Tensor:
        """Every number of ``data`` converted by ``scalar``."""
        if getattr(getattr(data, "dtype", None), "kind", None) == "f":
            data = Tensor(data.shape, data.ravel().tolist())  # Python's floats: the same numbers, sooner converted
        return tensor(data).map(self.scalar)

    def __repr__(self) -> str:
        return f"gs.{self.name}"
