SELECT record FROM mlms_systems ORDER BY hostname, system_id
