"""Gateways in this process before simulated engines.

fleet_story    two workers and a client          worker_story     workers that die, drain and come back
joining_fleet  workers that join later           adapter_loading  adapters that administrators load
sharing_gateways, tree_story   several gateways with one Redis
agent_serving  an agent                          sim_reading      what an engine publishes
"""
