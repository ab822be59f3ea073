"""The framework of policies.

registry        policies by name                  plugins   policies of files and packages
composed_policy filters, scorers and a picker     ab_test   several policies, by share
guard           third-party code, supervised      contract  the checks of `kvgate policy test`
"""
