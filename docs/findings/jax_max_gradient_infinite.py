import jax
import jax.numpy as jnp

_, pull = jax.vjp(jnp.max, jnp.array([1.0, 2.0, 3.0]))
(gradient,) = pull(jnp.array(jnp.inf))
_, pull = jax.vjp(lambda x: x[jnp.argmax(x)], jnp.array([1.0, 2.0, 3.0]))
(gathered,) = pull(jnp.array(jnp.inf))

print("max", gradient.tolist())
print("x[argmax(x)]", gathered.tolist())
print("fixed" if gradient.tolist() == [0, 0, jnp.inf] else "not fixed")
