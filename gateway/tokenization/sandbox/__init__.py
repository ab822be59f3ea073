"""Limits of time and memory for chat templates, which are programs from outside.

render_budget    what one rendering may cost                  budgeted_code    generated code that pays
priced_filters   filters and tests that pay for their work    priced_methods   operators and methods that do
"""
