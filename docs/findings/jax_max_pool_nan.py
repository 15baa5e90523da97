import jax
import jax.numpy as jnp
from jax import lax

x = jnp.array([[1.0, jnp.nan, 3.0]])
pool = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 1), "VALID")  # noqa: E731
y, pull = jax.vjp(pool, x)
(gradient,) = pull(jnp.ones_like(y))

print("y", y.tolist())
print("gradient", gradient.tolist())
print("fixed" if gradient.tolist() == [[0, 1, 0]] else "not fixed")
