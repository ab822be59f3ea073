"""Commands of `kvgate` beside the server; `gateway/cli.py` names them all.

serve    one process or several          check, check_run        the fleet and the configuration, checked
check_prompts   proofs of it by prompts     check_events            the KV events that are tried
demo     a simulated fleet               index, index_survey     the index in Redis
explain  a decision, without sending     policy                  list and contract checks
engine   the conformance test of one
key      API keys                        lora                    adapters
revocation   a key removed, and gateways asked for proof
config   the options in effect, and their mistakes
completion   of commands and flags, in a shell
status   the fleet and a decision, for people
admin_answer   what an admin API answers, and why it does not
"""
