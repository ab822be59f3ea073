"""Inference requests as routing sees them, and the body that goes on to the worker.

routes           the table of routes                       request          what routing reads of a body
chat_messages    a chat's messages, not yet decoded        field_types      types of fields, rejected by name
model_name       the model that is checked and sent        model_alias      one model under several names
field_judgement  every field of every engine, judged       steering         fields removed or checked
cache_salt       the tenant's salt in the body             session_id       session ids, kept short
media_uuid       media ids scoped to a tenant              adapter_field    an adapter named beside the model
caller           tenant, models and salt of a client       json_values      numbers beyond floats
body_text        the encoding of a body, and broken places
"""
