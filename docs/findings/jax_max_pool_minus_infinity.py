import jax
import jax.numpy as jnp
from jax import lax

x = jnp.array([[-jnp.inf, -jnp.inf, -jnp.inf]])
ones = jnp.ones_like(x)
pool = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 1), "VALID")  # noqa: E731
identity = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1), (1, 1), "VALID")  # noqa: E731

for name, function in (("3 cells", pool), ("1 cell", identity)):
    y, tangent = jax.jvp(function, (x,), (ones,))
    (gradient,) = jax.vjp(function, x)[1](jnp.ones_like(y))
    print("windows of", name, "tangent", tangent.tolist(), "gradient", gradient.tolist())
print("fixed" if tangent.tolist() == ones.tolist() else "not fixed")
