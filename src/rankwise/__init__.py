"""See, steer and explain the rank of every weight product inside a neural network."""

from rankwise.product.product import Product

__all__ = ["Product"]
