"""What policies run in: the registry by name, plugins, composition, A/B tests, the guard around third-party
code,
and the contract suite that `kvgate policy test` runs."""
