"""The framework of policies: the registry by name, plugins, composition, A/B tests, the guard around
third-party code, and the contract suite that `kvgate policy test` runs."""
